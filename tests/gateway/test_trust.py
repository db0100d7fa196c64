from collections.abc import Iterable

import pytest

from gateway.trust import FADE_S, NOISE, Errors, Prediction, Trust


def fed(trust: Trust, answers: Iterable[tuple[Prediction, int]], now: float = 0.0) -> Trust:
    for prediction, delivered in answers:
        trust.observe(prediction, delivered, now)
    return trust


def promise(tokens: int) -> Prediction:
    return Prediction(possible=tokens, expected=tokens, held=tokens)


def until_half(trust: Trust, prediction: Prediction, delivered: int) -> int:
    """Answers until half of the credit is gone, or half of what nobody promised is credited."""
    for count in range(1, 100):
        trust.observe(prediction, delivered, 0.0)
        if trust.honoured(0.0) <= 0.5 or trust.unpromised(0.0) >= 0.5:
            return count
    raise AssertionError("never")


@pytest.mark.parametrize("tokens", [16, 208, 1024, 100_000])
def test_a_replica_that_starts_to_lie_loses_half_within_a_few_answers(tokens: int) -> None:
    fresh = until_half(Trust(), promise(tokens), 0)
    honest = until_half(fed(Trust(), [(promise(tokens), tokens)] * 100), promise(tokens), 0)
    print(tokens, fresh, honest)
    assert fresh <= 9 and honest <= 4


def test_however_long_the_honest_prompts_and_however_short_the_others() -> None:
    trust = fed(Trust(), [(promise(100_000), 100_000)] * 100)
    assert until_half(trust, promise(16), 0) <= 14


def test_a_short_prompt_hardly_weighs_beside_long_ones() -> None:
    trust = fed(Trust(), [(promise(8000), 8000)] * 100)
    assert fed(trust, [(promise(16), 0)]).honoured(0.0) > 0.98
    assert fed(trust, [(promise(8000), 0)]).honoured(0.0) < 0.83


def test_one_odd_answer_of_a_new_replica_is_no_lie() -> None:
    assert fed(Trust(), [(promise(1024), 0)]).honoured(0.0) > 0.75


def test_it_believes_again_what_comes_true_again() -> None:
    trust = fed(Trust(), [(promise(1024), 0)] * 100)
    assert trust.honoured(0.0) < 0.01
    assert fed(trust, [(promise(1024), 1024)] * 20).honoured(0.0) > 0.95


def test_a_part_of_what_was_promised_is_that_part() -> None:
    trust = fed(Trust(), [(promise(1024), 256)] * 100)
    assert trust.honoured(0.0) == pytest.approx(0.25, abs=0.01)


def test_tokens_that_nobody_promised() -> None:
    behind = Prediction(possible=1024, expected=208, held=208)
    assert until_half(Trust(), behind, 1024) <= 9
    trust = fed(Trust(), [(behind, 208 + 408)] * 100)
    assert trust.unpromised(0.0) == pytest.approx(0.5, abs=0.01)
    assert trust.honoured(0.0) == 1.0
    # Its digest has caught up.
    assert fed(trust, [(behind, 208)] * 20).unpromised(0.0) == 0.0


def test_a_claim_beyond_what_is_possible_counts_as_all() -> None:
    trust = fed(Trust(), [(Prediction(1024, 0, 0), 10**9)] * 100)
    assert trust.unpromised(0.0) <= 1.0


def test_what_a_gateway_only_expected_is_not_the_replica_s_fault() -> None:
    vain = Prediction(possible=1024, expected=1024, held=208)
    trust = fed(Trust(), [(vain, 208)] * 100)
    assert (trust.honoured(0.0), trust.unpromised(0.0)) == (1.0, 0.0)
    assert vain.errors(208) == Errors(promised=0, expected=816, unpromised=0)
    assert vain.errors(100) == Errors(promised=112, expected=816, unpromised=0)
    # Nor is it a merit of the replica, where it comes true.
    assert fed(trust, [(vain, 1024)] * 100).unpromised(0.0) == 0.0


def test_single_tokens_beyond_whole_blocks_are_no_error() -> None:
    prediction = Prediction(possible=992, expected=96, held=96)
    assert prediction.errors(111) == Errors(0, 0, 0)
    assert prediction.errors(112).unpromised == 16


def test_a_few_unpromised_tokens_are_noise() -> None:
    behind = Prediction(possible=1600, expected=0, held=0)
    assert fed(Trust(), [(behind, int(1600 * NOISE))] * 100).unpromised(0.0) == 0.0


def test_without_answers_belief_goes_back_to_its_start() -> None:
    trust = fed(Trust(), [(promise(1024), 0)] * 100 + [(Prediction(1024, 0, 0), 1024)] * 100, now=10.0)
    assert trust.honoured(10.0) < 0.01 and trust.unpromised(10.0) > 0.99
    assert 0.35 < trust.unpromised(10.0 + FADE_S) < 0.38
    assert 0.62 < trust.honoured(10.0 + FADE_S) < 0.65
    assert trust.honoured(10.0 + 10 * FADE_S) > 0.99
    # Time that runs backwards, as readings of two heartbeats may seem to, changes nothing.
    assert trust.honoured(0.0) < 0.01


@pytest.mark.parametrize("every_s", [1, 30, 60])
def test_a_liar_is_found_out_at_any_usual_rate(every_s: int) -> None:
    trust = Trust()
    for count in range(20):
        trust.observe(promise(1024), 0, count * every_s)
    assert trust.honoured(20.0 * every_s) < 0.5


def test_nothing_at_stake_says_nothing() -> None:
    trust = fed(Trust(), [(Prediction(0, 0, 0), 0)] * 10)
    assert (trust.honoured(0.0), trust.unpromised(0.0)) == (1.0, 0.0)
