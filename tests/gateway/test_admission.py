import asyncio

from gateway.admission import Waiters


def clock() -> float:
    return asyncio.get_running_loop().time()


async def test_what_is_there_already_needs_no_wait() -> None:
    assert await Waiters(clock).until(lambda: 7, clock() - 1) == 7


async def test_past_the_deadline_there_is_nothing() -> None:
    found: list[str] = []
    assert await Waiters(clock).until(lambda: found[0] if found else None, clock() + 0.02) is None


async def test_all_that_wait_hear_of_a_change() -> None:
    waiters = Waiters(clock)
    found: list[str] = []
    tasks = [asyncio.create_task(waiters.until(lambda: found[0] if found else None, clock() + 5)) for _ in range(20)]
    await asyncio.sleep(0)
    found.append("replica")
    waiters.notify()
    assert await asyncio.gather(*tasks) == ["replica"] * 20


async def test_a_change_that_nobody_tells_of_is_found_as_well() -> None:
    waiters = Waiters(clock)
    found: list[str] = []
    task = asyncio.create_task(waiters.until(lambda: found[0] if found else None, clock() + 5))
    await asyncio.sleep(0)
    found.append("replica")
    assert await task == "replica"
