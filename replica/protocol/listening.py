"""A port of one's own and the signal to stop, for every process that serves."""

import asyncio
import signal
import socket


class ListenError(Exception):
    """The port can't be had; the message says which, and why."""


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Taken before anything slow happens; call `listen` once there is something to say. `shared`: other sockets that
    say so, of this user, may have the same port, and the kernel spreads connections over them. Raises ListenError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ListenError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


def listen(listener: socket.socket) -> None:
    """Raises ListenError: two processes that reuse an address may both bind it, and only one may listen."""
    try:
        listener.listen()
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise ListenError(f"cannot listen on {host}:{port}: {error.strerror}") from error


def stop_signal() -> asyncio.Event:
    """Set by SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
