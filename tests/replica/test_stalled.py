"""A replica says for how long its engine has stood still, and not of one that is idle or merely slow."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from collections.abc import Sequence as SequenceOf

import pytest

from replica.admission import QueueLimits
from replica.cache.manager import CacheEvents, CacheManager
from replica.engine_base import SteppingEngine
from replica.metrics import ReplicaMetrics
from replica.protocol.records import CostModel
from replica.protocol.text import ModelText
from replica.scheduler import SchedulerLimits
from replica.sequence import Chunk, SamplingParams, Sequence
from replica.serving import TICK_S, Serving
from replica.step import Sampled, StepWork
from replica.trace import TraceLog
from replica.worker import EngineWorker

LATER = 1000.0


class GatedEngine(SteppingEngine):
    """Computes while its gate is open. A prompt token takes 10 s, so it says."""

    def __init__(self) -> None:
        super().__init__(CacheManager(64), SchedulerLimits(256, 8), time.monotonic)
        self.gate = threading.Event()
        self.inside = threading.Event()
        self.gate.set()

    @property
    def cost(self) -> CostModel:
        return CostModel(0.0, 10.0, 0.0, 0.0, 256)

    def _compute(self, chunks: SequenceOf[Chunk], work: StepWork) -> list[tuple[Sequence, Sampled]]:
        self.inside.set()
        self.gate.wait()
        return [(chunk.sequence, Sampled(7)) for chunk in chunks if chunk.samples]


class Quiet:
    def cache_changed(self, events: CacheEvents) -> None: ...
    def cache_replaced(self) -> None: ...


class Bench:
    def __init__(self) -> None:
        self.engine = GatedEngine()
        self.waited_s = 0.0
        """For a core."""
        loop = asyncio.get_running_loop()
        self.worker = EngineWorker(
            self.engine,
            lambda: CacheManager(64),
            Quiet(),
            lambda step: None,
            loop,
            time.monotonic,
            lambda thread_id: self.waited_s,
        )

    async def run(self, name: str, prompt: list[int], max_tokens: int) -> None:
        stream = self.worker.submit([Sequence(name, prompt, SamplingParams(max_tokens), namespace=0)])
        try:
            got = 0
            while got < max_tokens:
                # Several come at once where this loop is slower than the engine.
                got += len(await stream.next())
        except asyncio.CancelledError:
            pass
        finally:
            self.worker.close(stream)

    async def stop_at_a_step(self, prompt: list[int]) -> "asyncio.Task[None]":
        self.engine.inside.clear()
        self.engine.gate.clear()
        running = asyncio.create_task(self.run("stuck", prompt, 1))
        await asyncio.to_thread(self.engine.inside.wait, 10)
        return running

    @property
    def stalled(self) -> float:
        """As it will be LATER, if nothing moves until then."""
        return self.worker.stalled_s(time.monotonic() + LATER)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    made.worker.start()
    # The first steps are given a minute each.
    await made.run("first", [1, 2, 3], 6)
    yield made
    made.engine.gate.set()
    await made.worker.stop()


async def test_an_idle_engine_does_not_stand_still(bench: Bench) -> None:
    deadline = time.monotonic() + 10
    while bench.stalled and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert bench.stalled == 0.0


async def test_an_engine_in_a_step_without_end_stands_still(bench: Bench) -> None:
    running = await bench.stop_at_a_step([5])
    assert bench.worker.stalled_s(time.monotonic()) == 0.0
    assert bench.stalled == pytest.approx(LATER - 30, abs=5)
    bench.engine.gate.set()
    await running
    await test_an_idle_engine_does_not_stand_still(bench)


async def test_a_long_step_is_given_three_times_what_its_cost_model_says(bench: Bench) -> None:
    running = await bench.stop_at_a_step(list(range(40)))
    assert bench.stalled == 0.0, "40 tokens of 10 s are 400 s"
    bench.engine.gate.set()
    await running


async def test_a_step_that_waits_for_a_core_is_slow_and_no_more(bench: Bench) -> None:
    running = await bench.stop_at_a_step([5])
    assert bench.worker.stalled_s(time.monotonic()) == 0.0
    bench.waited_s = LATER / 2
    assert bench.stalled == pytest.approx(LATER / 2 - 30, abs=5)
    bench.waited_s = LATER
    assert bench.stalled == 0.0
    bench.engine.gate.set()
    await running


async def test_an_event_loop_that_stands_still_is_told_of_as_well(bench: Bench, tiny_text: ModelText) -> None:
    await test_an_idle_engine_does_not_stand_still(bench)
    traces = TraceLog(time.monotonic)
    serving = Serving(tiny_text, bench.worker, ReplicaMetrics(), traces, "r", 512, QueueLimits(100))
    assert serving.stalled_s(time.monotonic() + LATER) == 0.0, "before the loop runs"
    ticking = asyncio.create_task(serving.tick(time.monotonic))
    await asyncio.sleep(0.05)
    assert serving.stalled_s(time.monotonic()) == 0.0
    assert serving.stalled_s(time.monotonic() + LATER) == pytest.approx(LATER - TICK_S, abs=5)
    ticking.cancel()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_an_engine_whose_thread_is_gone_stands_still() -> None:
    class Dead(Bench):
        async def kill(self) -> None:
            def leave() -> None:
                raise SystemExit

            self.worker._commands.put(leave)
            await asyncio.to_thread(self.worker._thread.join, 10)

    dead = Dead()
    dead.worker.start()
    await dead.kill()
    assert dead.stalled == pytest.approx(LATER, abs=5)
