import asyncio
import os
import signal
import socket

import pytest

from replica.protocol.listening import ListenError, bind, listen, stop_signal


def test_a_bound_port_is_listened_to() -> None:
    for host in ("127.0.0.1", "localhost"):
        with bind(host, 0) as listener:
            listen(listener)
            with socket.create_connection(listener.getsockname()[:2]):
                pass


def test_a_port_that_another_listens_to_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            bind("127.0.0.1", port)


def test_of_two_that_share_an_address_one_may_listen() -> None:
    with bind("127.0.0.1", 0) as one:
        port = one.getsockname()[1]
        with bind("127.0.0.1", port) as other:
            listen(other)
            with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port}"):
                listen(one)


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1"])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    with pytest.raises(ListenError, match=f"cannot listen on {host}:0"):
        bind(host, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_to_stop(number: int) -> None:
    stop = stop_signal()
    try:
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        async with asyncio.timeout(10):
            await stop.wait()
    finally:
        for each in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(each)
