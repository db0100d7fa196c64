"""Deadlines by the wheel, on the real event loop."""

import asyncio

from gateway.http.wheel import BATCH, NEVER, Timed, Wheel
from tests.gateway.fakes import eventually


class Entry(Timed):
    def __init__(self) -> None:
        super().__init__()
        self.fired: list[float] = []

    def expired(self) -> None:
        self.fired.append(asyncio.get_running_loop().time())


async def test_an_entry_fires_once_after_its_deadline() -> None:
    loop = asyncio.get_running_loop()
    wheel, entry = Wheel(loop), Entry()
    begin = loop.time()
    wheel.watch(entry, begin + 0.2)
    await asyncio.sleep(0.6)
    assert len(entry.fired) == 1 and entry.fired[0] >= begin + 0.2


async def test_a_deadline_can_move_both_ways_and_go() -> None:
    loop = asyncio.get_running_loop()
    wheel = Wheel(loop)
    later, nearer, gone, never = Entry(), Entry(), Entry(), Entry()
    for entry in (later, nearer, gone, never):
        wheel.watch(entry, loop.time() + (60 if entry is nearer else 0.1))
    later.deadline = loop.time() + 0.7
    wheel.watch(nearer, loop.time() + 0.1)
    wheel.forget(gone)
    never.deadline = NEVER
    await eventually(lambda: bool(nearer.fired))
    assert not later.fired
    await eventually(lambda: bool(later.fired))
    assert not gone.fired and not never.fired
    wheel.watch(never, loop.time())
    await eventually(lambda: bool(never.fired))


async def test_many_that_fire_together_do_so_in_portions() -> None:
    loop = asyncio.get_running_loop()
    wheel, entries = Wheel(loop), [Entry() for _ in range(BATCH * 3 + 1)]
    for entry in entries:
        wheel.watch(entry, loop.time() + 0.05)
    await eventually(lambda: all(entry.fired for entry in entries))
    assert all(len(entry.fired) == 1 for entry in entries)
