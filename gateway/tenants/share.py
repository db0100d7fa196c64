"""The sockets of a ledger: each worker has one for datagrams in the gateway's own folder, and sends to all others'."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.tenants.ledger import Ledger, Word

TICK_S = 0.05
"""What is new waits for the next tick, and no request for any."""
DATAGRAM_MAX = 1 << 17
READ_AT_ONCE = 64


async def share(ledger: Ledger, number: int, paths: Sequence[Path], clock: Callable[[], float]) -> None:
    """Until cancelled. `paths`: of all workers, by number; ours is made, and gone in the end."""
    loop, own = asyncio.get_running_loop(), paths[number]
    own.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as mine:
        mine.bind(str(own))
        loop.add_reader(mine, lambda: _receive(mine, ledger, clock))
        try:
            while True:
                ledger.expire(clock())
                for word in ledger.to_tell(clock()):
                    _send(mine, word, [path for path in paths if path != own], ledger)
                await asyncio.sleep(TICK_S)
        finally:
            loop.remove_reader(mine)
            own.unlink(missing_ok=True)


def _send(mine: socket.socket, word: Word, others: Sequence[Path], ledger: Ledger) -> None:
    for path in others:
        try:
            mine.sendto(word.data, str(path))
        except BlockingIOError:
            ledger.tell_again(word)
        except OSError:
            # It isn't there now, and is told all when it is.
            continue


def _receive(mine: socket.socket, ledger: Ledger, clock: Callable[[], float]) -> None:
    with contextlib.suppress(BlockingIOError):
        for _ in range(READ_AT_ONCE):
            ledger.hear(mine.recv(DATAGRAM_MAX), clock())
