import asyncio

import pytest

from gateway.errors import RetryBudgetExhausted
from gateway.upstream import RetryBudget


def clock() -> float:
    return asyncio.get_running_loop().time()


async def test_one_retry_is_always_allowed() -> None:
    budget = RetryBudget(0.2, clock)
    budget.begin()
    slot = await budget.take(clock())
    with pytest.raises(RetryBudgetExhausted):
        await budget.take(clock() + 0.05)
    slot.close()
    (await budget.take(clock())).close()


async def test_the_budget_is_a_share_of_live_requests() -> None:
    budget = RetryBudget(0.2, clock)
    budget.live = 50
    slots = [await budget.take(clock()) for _ in range(10)]
    with pytest.raises(RetryBudgetExhausted):
        await budget.take(clock())
    for slot in slots:
        slot.close()


async def test_a_retry_over_the_budget_waits_for_its_turn() -> None:
    budget = RetryBudget(0.0, clock)
    slot = await budget.take(clock())
    waiting = asyncio.create_task(budget.take(clock() + 5))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    slot.close()
    slot.close()
    (await waiting).close()


async def test_idle_waits_for_the_last_request() -> None:
    budget = RetryBudget(0.2, clock)
    budget.begin()
    waiting = asyncio.create_task(budget.idle(clock() + 5))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    budget.end()
    await waiting
