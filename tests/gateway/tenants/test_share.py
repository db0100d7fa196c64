import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.tenants.caller import Caller, Limits
from gateway.tenants.ledger import Ledger
from gateway.tenants.meter import Meter
from gateway.tenants.share import share
from tests.gateway.fakes import eventually

WHO = Caller("k", "alice", {"tenant alice": Limits(concurrent_requests=5)})


@asynccontextmanager
async def worker(paths: list[Path], number: int) -> AsyncIterator[Meter]:
    meter = Meter(shared=True)
    task = asyncio.create_task(share(Ledger(meter, number, f"{time.monotonic()}"), number, paths, time.monotonic))
    try:
        yield meter
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def elsewhere(meter: Meter) -> int:
    account = meter.known("tenant alice")
    return 0 if account is None else account.elsewhere


async def test_workers_hear_each_other_and_one_that_comes_anew(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.ledger" for number in range(3)]
    # As one leaves it behind that is killed.
    paths[0].touch()
    async with worker(paths, 0) as first:
        async with worker(paths, 1) as second:
            usage = first.begin(WHO, time.monotonic())
            second.begin(WHO, time.monotonic())
            await eventually(lambda: (elsewhere(first), elsewhere(second)) == (1, 1))
            usage.close()
            await eventually(lambda: elsewhere(second) == 0)
            first.begin(WHO, time.monotonic())
        assert not paths[1].exists()
        async with worker(paths, 1) as successor:
            await eventually(lambda: (elsewhere(first), elsewhere(successor)) == (0, 1))
    assert not paths[0].exists()
