"""The engine with a clock of its own: what steps it makes, and that each takes the profile's time."""

import random
from dataclasses import replace

import pytest

from replica.cache.manager import CacheManager
from replica.profiles import PROFILES, Profile
from replica.protocol.text import ModelText
from replica.scheduler import SchedulerLimits
from replica.sequence import FinishReason, SamplingParams, Sequence
from replica.step import StepResult
from replica.timing.engine import TimingEngine
from replica.timing.pace import Pace
from replica.timing.words import Words

PROFILE = replace(PROFILES["h100-qwen3-32b"], max_step_tokens=256, max_running=16)


class Rig:
    """Each reading of the clock costs a little, so that there is something to make up for."""

    def __init__(self, text: ModelText, profile: Profile = PROFILE, num_pages: int = 256) -> None:
        self.now = 10.0
        self.clock_s = 1e-4
        limits = SchedulerLimits(profile.max_step_tokens, profile.max_running)
        pace = Pace(self.clock, self.sleep)
        words = Words(text.tokenizer, text.stop_token_ids)
        self.engine = TimingEngine(profile, words, pace, CacheManager(num_pages), limits, self.clock)

    def clock(self) -> float:
        self.now += self.clock_s
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self) -> list[StepResult]:
        steps = []
        while self.engine.scheduler.has_work:
            steps.append(self.engine.step())
            self.engine.check_integrity()
        return steps

    def ask(self, *prompts: list[int], max_tokens: int = 20) -> tuple[list[Sequence], list[StepResult]]:
        sequences = [Sequence(f"s{n}", prompt, SamplingParams(max_tokens), 0) for n, prompt in enumerate(prompts)]
        for sequence in sequences:
            self.engine.add(sequence)
        return sequences, self.run()


def profile_s(profile: Profile, steps: list[StepResult]) -> float:
    return sum(profile.step_s(step.work.tokens, step.work.attention, step.work.decoding) for step in steps)


@pytest.mark.parametrize("profile", [PROFILE, replace(PROFILE, c_att=1e-8)])
def test_steps_together_last_as_long_as_the_profile_says(tiny_text: ModelText, profile: Profile) -> None:
    rig = Rig(tiny_text, profile)
    began = rig.now
    _, steps = rig.ask([5] * 700, [6] * 90, [7] * 10)
    # Short of a few readings of the clock: 700 + 90 + 10 tokens in steps of 256 or a bit more, then decodes.
    assert rig.now - began == pytest.approx(profile_s(profile, steps), abs=1e-3)
    assert max(step.work.tokens for step in steps) <= 256 * 17 // 16
    assert sum(step.work.tokens for step in steps) == 800
    assert sum(step.seconds for step in steps) == pytest.approx(rig.now - began, rel=0.05)


def test_what_the_cache_holds_takes_no_time(tiny_text: ModelText) -> None:
    rig = Rig(tiny_text)
    cold, cold_steps = rig.ask([9] * 320, max_tokens=1)
    warm, warm_steps = rig.ask([9] * 320, max_tokens=1)
    assert (cold[0].num_cached, warm[0].num_cached) == (0, 304)
    saved = sum(step.seconds for step in cold_steps) - sum(step.seconds for step in warm_steps)
    assert saved == pytest.approx(304 * PROFILE.c_lin + PROFILE.c0, rel=0.05)


def test_decodes_slow_down_with_the_kv_in_use_where_the_profile_says_so(tiny_text: ModelText) -> None:
    profile = replace(PROFILES["dynamo-mocker"], max_step_tokens=256, max_running=16)
    few, many = Rig(tiny_text, profile), Rig(tiny_text, profile)
    few.ask([5] * 16)
    few_steps = few.ask([5] * 16, max_tokens=20)[1]
    many_steps = many.ask(*([n + 2] * 200 for n in range(16)), max_tokens=20)[1]
    longest_of_few, longest_of_many = (
        max(step.seconds for step in steps if step.work.tokens == 0) for steps in (few_steps, many_steps)
    )
    assert 0.005 < longest_of_few < 0.010
    assert longest_of_many > 0.025


def test_a_machine_that_is_too_slow_is_told_of_ever_more_rarely(
    tiny_text: ModelText, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tiny_text, replace(PROFILE, c0=0.0, c_lin=0.0, c_dec=0.0))
    rig.clock_s = 0.02
    rig.ask([5] * 20, max_tokens=400)
    told = [record.getMessage() for record in caplog.records]
    assert 3 <= len(told) <= 6
    assert told[0].startswith("too busy a machine: steps have taken 1.")


def test_the_cost_that_is_published_is_the_profile_s_own(tiny_text: ModelText) -> None:
    assert Rig(tiny_text).engine.cost == PROFILE.cost


def test_any_schedule_gives_the_same_answers(tiny_text: ModelText, seed: int) -> None:
    rng = random.Random(seed)
    prompts = [[rng.randrange(2, 250) for _ in range(rng.randrange(1, 120))] for _ in range(24)]
    alone = [Rig(tiny_text).ask(prompt)[0][0].tokens for prompt in prompts]
    # Few pages, so that there are preemptions, and evictions.
    crowded = Rig(tiny_text, num_pages=24)
    together, steps = crowded.ask(*prompts)
    assert [sequence.tokens for sequence in together] == alone
    assert any(step.batch.preempted for step in steps)
    reasons = [output.finish_reason for step in steps for output in step.outputs if output.finish_reason]
    assert reasons == [FinishReason.LENGTH] * 24


def test_an_abort_within_an_answer_ends_it_and_gives_its_pages_back(tiny_text: ModelText) -> None:
    rig = Rig(tiny_text)
    stays, goes = (Sequence(name, [3] * 40, SamplingParams(30), 0) for name in "ab")
    rig.engine.add(stays)
    rig.engine.add(goes)
    for _ in range(5):
        rig.engine.step()
    rig.engine.abort(goes)
    rig.run()
    assert (stays.num_output, goes.num_output < 30) == (30, True)
    load = rig.engine.load()
    assert load.free_blocks + load.evictable_blocks == load.total_blocks
