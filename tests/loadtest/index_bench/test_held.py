import asyncio
import time

from loadtest.index_bench.held import HeldLoop


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def doze(seconds: float) -> None:
    time.sleep(seconds)


def test_a_hold_is_told_on_the_clock_and_in_cpu_time() -> None:
    loop = HeldLoop()

    async def work() -> None:
        await asyncio.sleep(0)
        burn(0.3)
        await asyncio.sleep(0)
        loop.start()
        for hold in (doze, burn):
            await asyncio.sleep(0)
            hold(0.02)
            await asyncio.sleep(0)
            hold(0.1 if hold is doze else 0.01)
            await asyncio.sleep(0)

    loop.run(work())
    figures = loop.figures()
    assert figures["held_ms"] >= 100 and figures["held_p999_ms"] == figures["held_ms"]
    # Neither what was before the start nor what was slept through.
    assert 20 <= figures["held_cpu_ms"] < 200
