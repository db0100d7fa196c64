import random

import torch

from replica.sampler import sample, uniform
from replica.sequence import SamplingParams, Sequence


def sequence(prompt_length: int = 3, **params: float) -> Sequence:
    return Sequence("s", [1] * prompt_length, SamplingParams(max_tokens=1, **params), namespace=0)  # type: ignore[arg-type]


def test_zero_temperature_takes_the_likeliest() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]])
    assert sample(logits, [sequence(temperature=0), sequence(temperature=0)]) == [1, 0]


def test_a_seeded_choice_does_not_depend_on_the_batch(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(8, 50, generator=generator)
    rows = [sequence(prompt_length=n + 1, seed=n) for n in range(8)]
    together = sample(logits, rows)
    assert together == [sample(logits[n : n + 1], [rows[n]])[0] for n in range(8)]


def test_frequencies_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    draws = 4000
    rows = [sequence(seed=n) for n in range(draws)]
    tokens = sample(probabilities.log().expand(draws, 4), rows)
    for token, probability in enumerate(probabilities.tolist()):
        # Six standard deviations; the seeds are fixed, so this can't flicker.
        tolerance = 6 * (probability * (1 - probability) / draws) ** 0.5
        assert abs(tokens.count(token) / draws - probability) < tolerance


def test_top_p_cuts_the_tail_and_keeps_the_token_that_reaches_it() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(500, 4)
    rows = [sequence(seed=n, top_p=0.7) for n in range(500)]
    assert set(sample(logits, rows)) == {0, 1}
    tiny = [sequence(seed=n, top_p=1e-9) for n in range(20)]
    assert set(sample(logits[:20], tiny)) == {0}


def test_low_temperature_sharpens() -> None:
    logits = torch.tensor([1.0, 0.9]).expand(200, 2)
    cold = sample(logits, [sequence(seed=n, temperature=0.01) for n in range(200)])
    assert cold.count(0) > 190


def test_an_answer_cannot_end_before_min_tokens() -> None:
    logits = torch.tensor([[9.0, 1.0, 0.0]])
    early = sequence(temperature=0, min_tokens=1, stop_token_ids=frozenset({0}))  # type: ignore[arg-type]
    assert sample(logits.clone(), [early]) == [1]
    early.append(1)
    assert sample(logits.clone(), [early]) == [0]
    without_stops = sequence(temperature=0, min_tokens=1)
    assert sample(logits.clone(), [without_stops]) == [0]


def test_uniform_is_spread_and_differs_by_position(seed: int) -> None:
    base = random.Random(seed).randrange(2**63)
    values = [uniform(base, position) for position in range(2000)]
    assert all(0 <= value < 1 for value in values)
    assert len(set(values)) == len(values)
    assert abs(sum(values) / len(values) - 0.5) < 0.06
