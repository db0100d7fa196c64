"""The engine that is a step ahead of its device: answers, pages, events, whatever comes in between."""

import random
import time
from dataclasses import dataclass, field

import pytest

from replica.cache.manager import CacheManager
from replica.cache.naive import NaiveCache
from replica.device.engine import OverlapEngine
from replica.protocol.hashing import BLOCK_SIZE
from replica.scheduler import SchedulerLimits
from replica.sequence import FinishReason, SamplingParams, Sequence, SequenceState
from replica.step import StepResult
from tests.replica.device.plain_device import SPOILT, PlainDevice, SpoilingPool, chosen
from tests.replica.driver import kv_after, next_token


def expected_answer(prompt: list[int], namespace: int, params: SamplingParams) -> list[int]:
    kv = namespace
    for token in prompt:
        kv = kv_after(kv, token)
    answer: list[int] = []
    while len(answer) < params.max_tokens:
        answer.append(chosen(next_token(kv), params, len(answer)))
        if answer[-1] in params.stop_token_ids:
            break
        kv = kv_after(kv, answer[-1])
    return answer


@dataclass
class Rig:
    num_pages: int = 24
    max_step_tokens: int = 48
    max_running: int = 6
    prefix_cache: bool = True
    seed: int = 0
    held: set[int] = field(default_factory=set)
    outputs: dict[Sequence, list[int]] = field(default_factory=dict)
    reasons: dict[Sequence, FinishReason] = field(default_factory=dict)
    preempted: int = 0

    def __post_init__(self) -> None:
        self.device = PlainDevice(self.num_pages, random.Random(self.seed))
        limits = SchedulerLimits(self.max_step_tokens, self.max_running)
        self.engine = OverlapEngine(self.device, self.new_cache(), limits, time.monotonic)

    def new_cache(self) -> CacheManager | NaiveCache:
        self.cache = CacheManager(self.num_pages) if self.prefix_cache else NaiveCache(self.num_pages)
        self.cache._pool = SpoilingPool(self.num_pages, self.device.free)
        return self.cache

    def add(self, prompt: list[int], namespace: int = 0, priority: int = 0, **params: object) -> Sequence:
        settings = SamplingParams(**({"max_tokens": 4} | params))  # type: ignore[arg-type]
        sequence = Sequence(f"s{len(self.outputs)}", prompt, settings, namespace, priority)
        self.outputs[sequence] = []
        self.engine.add(sequence)
        return sequence

    def step(self) -> StepResult:
        result = self.engine.step()
        for output in result.outputs:
            assert output.sequence not in self.reasons, "an output after the last"
            self.outputs[output.sequence].append(output.token)
            if output.finish_reason is not None:
                self.reasons[output.sequence] = output.finish_reason
        self.held = (self.held - set(result.events.removed)) | set(result.events.added)
        self.preempted += len(result.batch.preempted)
        self.check(set(result.events.added))
        return result

    def check(self, told: set[int]) -> None:
        engine = self.engine
        engine.check_integrity()
        for sequence in engine.scheduler.waiting:
            assert sequence.num_pending == 0
        for sequence in engine.scheduler.running:
            known = len(sequence.tokens) - sequence.num_pending
            assert known == len(sequence.prompt) + len(self.outputs[sequence])
            assert sequence.num_tree_pages * BLOCK_SIZE <= known, "a page of the tree with a placeholder"
        if isinstance(self.cache, CacheManager):
            for node in self.cache._tree.nodes():
                # The device is late: a page that was told of before its step was waited for would still be spoilt.
                assert node.hash not in told or SPOILT not in self.device.pages[node.page]

    def run(self) -> None:
        while self.engine.has_work:
            self.step()

    def check_idle(self) -> None:
        scheduler, cache = self.engine.scheduler, self.cache
        assert not self.engine.has_work and not scheduler.has_work
        self.engine.check_integrity()
        assert cache.num_free + cache.num_evictable == cache.num_pages
        assert scheduler._claims == {} and scheduler._backlog._entries == {} == scheduler._backlog._needs
        for sequence, tokens in self.outputs.items():
            expected = expected_answer(sequence.prompt, sequence.namespace, sequence.params)
            assert sequence.num_pending == 0 and sequence.state is SequenceState.FINISHED
            assert len(sequence.packed) == 4 * len(sequence.tokens)
            if sequence in self.reasons:
                assert tokens == sequence.tokens[len(sequence.prompt) :] == expected
            else:
                assert tokens == expected[: len(tokens)]
        if isinstance(cache, CacheManager):
            assert self.held == cache.hashes()


def test_the_next_batch_is_launched_before_the_last_one_is_read() -> None:
    rig = Rig()
    rig.add([1, 2, 3])
    launches = []
    while rig.engine.has_work:
        rig.step()
        launches.append(rig.device.num_launches)
    # A prompt's step and three of decode; nothing is launched behind the one that gives the last token.
    assert launches == [2, 3, 4, 4]
    rig.check_idle()


def test_what_the_host_must_choose_is_not_overtaken() -> None:
    rig = Rig()
    first = rig.add([1, 2, 3], max_tokens=6)
    rig.step()
    rig.add([4, 5, 6], logprobs=0)
    while rig.engine.has_work:
        before = rig.device.num_launches
        result = rig.step()
        if any(chunk.sequence is not first for chunk in result.batch.chunks):
            assert rig.device.num_launches - before <= 1
    rig.check_idle()


def test_a_stop_token_costs_one_row_that_is_dropped() -> None:
    rig = Rig()
    answer = expected_answer([7, 8], 0, SamplingParams(max_tokens=10))
    stopped = rig.add([7, 8], max_tokens=10, stop_token_ids=frozenset(answer[3:4]))
    rig.run()
    assert rig.reasons[stopped] is FinishReason.STOP
    # Also the row behind the stop token.
    assert rig.device.num_launches == answer.index(answer[3]) + 2
    rig.check_idle()


def test_a_single_token_is_one_launch() -> None:
    rig = Rig()
    one = rig.add([1] * 20, max_tokens=1)
    rig.run()
    assert rig.device.num_launches == 1 and rig.reasons[one] is FinishReason.LENGTH
    rig.check_idle()


def test_an_abort_takes_the_pages_at_once_and_the_launch_is_read_later() -> None:
    rig = Rig()
    sequence = rig.add([1] * 40, max_tokens=9)
    rig.step()
    rig.engine.abort(sequence)
    assert rig.cache.num_free + rig.cache.num_evictable == rig.cache.num_pages
    assert rig.engine.has_work and not rig.engine.scheduler.has_work
    assert rig.step().outputs == ()
    rig.check_idle()


def test_an_aborted_sequences_pages_serve_the_next_one_while_the_device_still_reads_them() -> None:
    rig = Rig(num_pages=4, prefix_cache=False)
    first = rig.add([1] * 50, max_tokens=9)
    rig.step()
    rig.engine.abort(first)
    rig.add([2] * 50, max_tokens=9)
    rig.run()
    rig.check_idle()


def test_a_sequence_that_is_preempted_with_a_token_on_the_device_goes_on_behind_it() -> None:
    rig = Rig(num_pages=6)
    for number in range(3):
        rig.add([number] * 30, max_tokens=20)
    rig.run()
    assert rig.preempted
    rig.check_idle()


def test_the_cache_may_be_replaced_while_a_launch_that_nobody_wants_is_unread() -> None:
    rig = Rig()
    sequence = rig.add([1] * 40, max_tokens=9)
    rig.step()
    rig.engine.abort(sequence)
    rig.engine.replace_cache(rig.new_cache())
    rig.held.clear()
    assert not rig.engine.has_work
    rig.add([1] * 40)
    rig.run()
    rig.check_idle()


def test_the_time_of_a_step_is_that_between_two_results() -> None:
    rig = Rig()
    now = 0.0
    rig.engine._clock = lambda: now
    rig.engine._read_at = now
    rig.add([1, 2, 3], max_tokens=5)
    seconds = []
    while rig.engine.has_work:
        now += 1.0
        seconds.append(rig.step().seconds)
    # The first began when it was read, by this clock.
    assert seconds == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert rig.engine.under_way.decoding >= 1


def random_prompt(rng: random.Random) -> list[int]:
    shared = [rng.randrange(3)] * rng.choice([0, 15, 16, 17, 32, 40])
    return shared + [rng.randrange(3) for _ in range(rng.randrange(1, 30))]


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize(
    ("num_pages", "max_step_tokens", "max_running"), [(10, 16, 3), (14, 7, 6), (24, 48, 6), (60, 100, 12)]
)
def test_random_operations(prefix_cache: bool, num_pages: int, max_step_tokens: int, max_running: int) -> None:
    seed = num_pages * 10 + prefix_cache
    print(f"seed {seed}")
    rng = random.Random(seed)
    rig = Rig(num_pages, max_step_tokens, max_running, prefix_cache, seed)
    live: list[Sequence] = []
    ended = {FinishReason.STOP: 0, FinishReason.LENGTH: 0}
    for _ in range(1250):
        live = [sequence for sequence in live if sequence.state is not SequenceState.FINISHED]
        action = rng.random()
        if action < 0.3 and len(live) < 2 * max_running:
            live.append(
                rig.add(
                    random_prompt(rng),
                    namespace=rng.randrange(2),
                    priority=rng.choice([0, 0, 0, 1, -1]),
                    max_tokens=rng.choice([1, 2, 5, 20]),
                    stop_token_ids=frozenset(rng.sample(range(50), rng.choice([0, 0, 2, 5]))),
                    min_tokens=rng.choice([0, 0, 0, 0, 3]),
                    logprobs=rng.choice([None] * 12 + [0]),
                )
            )
        elif action < 0.36 and live:
            rig.engine.abort(rng.choice(live))
        elif rig.engine.has_work:
            rig.step()
        if rng.random() < 0.01:
            rig.run()
            rig.check_idle()
    rig.run()
    rig.check_idle()
    for reason in rig.reasons.values():
        ended[reason] += 1
    assert min(ended.values()) > 20
    assert rig.preempted or num_pages == 60
