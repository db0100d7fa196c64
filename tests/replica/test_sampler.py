import random

import pytest
import torch

from replica.sampler import sample, uniform
from replica.sequence import SamplingParams, Sequence
from replica.step import Sampled


def sequence(prompt: list[int] | int = 3, answer: list[int] | None = None, **params: object) -> Sequence:
    prompt = [1] * prompt if isinstance(prompt, int) else prompt
    made = Sequence("s", prompt, SamplingParams(max_tokens=1, **params), namespace=0)  # type: ignore[arg-type]
    for token in answer or []:
        made.append(token)
    return made


def tokens_of(logits: torch.Tensor, rows: list[Sequence]) -> list[int]:
    return [sampled.token for sampled in sample(logits.clone(), rows)]


class Allowing:
    """A constraint that never moves."""

    is_finished = False

    def __init__(self, tokens: set[int], vocab: int) -> None:
        self._mask = sum(1 << token for token in tokens).to_bytes(-(-vocab // 8) + 1, "little")

    def bitmask(self) -> bytes:
        return self._mask

    def accept(self, token: int) -> None:
        pass


def test_zero_temperature_takes_the_likeliest_and_of_equals_the_first() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0], [1.0, 2.0, 2.0]])
    rows = [sequence(temperature=0) for _ in range(3)]
    assert sample(logits.clone(), rows) == [Sampled(1), Sampled(0), Sampled(1)]
    assert tokens_of(logits, [*rows[:2], sequence(temperature=1e-6, seed=1)])[:2] == [1, 0]


def test_a_choice_does_not_depend_on_the_batch(seed: int) -> None:
    rng = random.Random(seed)
    logits = torch.randn(24, 50, generator=torch.Generator().manual_seed(seed)) * 3
    rows = [random_sequence(rng, 50) for _ in range(24)]
    together = sample(logits.clone(), rows)
    assert together == [sample(logits[n : n + 1].clone(), [rows[n]])[0] for n in range(24)]


def random_sequence(rng: random.Random, vocab: int) -> Sequence:
    made = sequence(
        [rng.randrange(vocab) for _ in range(rng.randrange(1, 20))],
        [rng.randrange(vocab) for _ in range(rng.randrange(20))],
        temperature=rng.choice([0, 0.3, 1.0, 1.7]),
        top_p=rng.choice([1.0, 0.9, 0.2]),
        top_k=rng.choice([0, 1, 7]),
        min_p=rng.choice([0.0, 0.1, 1.0]),
        presence_penalty=rng.choice([0.0, 0.7, -0.5]),
        frequency_penalty=rng.choice([0.0, 0.3, -0.2]),
        repetition_penalty=rng.choice([1.0, 1.3, 0.8]),
        logit_bias=rng.choice([(), ((3, 5.0), (4, -100.0))]),
        stop_token_ids=frozenset({0, 2}),
        min_tokens=rng.choice([0, 10]),
        logprobs=rng.choice([None, 0, 3]),
        seed=rng.randrange(100),
    )
    if rng.random() < 0.5:
        made.constraint = Allowing({rng.randrange(vocab) for _ in range(10)}, vocab)
    return made


def changed_by_hand(logits: list[float], sequence: Sequence) -> list[float]:
    """The logits that temperature is applied to, one token after the other."""
    params = sequence.params
    answer = sequence.tokens[len(sequence.prompt) :]
    out = []
    allowed = range(len(logits))
    if sequence.constraint is not None:
        mask = int.from_bytes(sequence.constraint.bitmask(), "little")
        allowed = [token for token in allowed if mask >> token & 1]  # type: ignore[assignment]
    forbids_end = len(answer) < params.min_tokens and not params.stop_token_ids.issuperset(allowed)
    for token, logit in enumerate(logits):
        logit += dict(params.logit_bias).get(token, 0.0)
        if token in sequence.tokens:
            logit = logit / params.repetition_penalty if logit > 0 else logit * params.repetition_penalty
        logit -= params.frequency_penalty * answer.count(token) + params.presence_penalty * (token in answer)
        forbidden = token not in allowed or (forbids_end and token in params.stop_token_ids)
        out.append(float("-inf") if forbidden else logit)
    return out


def test_what_comes_before_temperature_is_what_it_is_by_hand(seed: int) -> None:
    """`sample` works on the logits in place, so that they can be looked at."""
    rng = random.Random(seed)
    for _ in range(200):
        row = random_sequence(rng, 40)
        logits = torch.tensor([[rng.gauss(0, 3) for _ in range(40)]])
        expected = changed_by_hand(logits[0].tolist(), row)
        sample(logits, [row])
        torch.testing.assert_close(logits[0], torch.tensor(expected), rtol=1e-5, atol=1e-5)


def drawn_by_hand(logits: list[float], params: SamplingParams, point: float) -> int:
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if params.temperature == 0:
        return order[0]
    weights = torch.softmax(torch.tensor(logits, dtype=torch.float64) / params.temperature, 0).tolist()
    cut = [token for token in order if weights[token] > 0][: params.top_k or None]
    cut = [token for token in cut if weights[token] >= params.min_p * weights[order[0]]]
    total = sum(weights[token] for token in cut)
    kept, reached = [], 0.0
    for token in cut:
        if reached >= params.top_p * total:
            break
        kept.append(token)
        reached += weights[token]
    is_cut = params.top_p < 1 or params.top_k > 0 or params.min_p > 0
    kept = kept if is_cut else sorted(kept)
    for token in kept:
        point -= weights[token] / reached
        if point < 0:
            return token
    return kept[-1]


def test_a_draw_is_what_it_is_by_hand(seed: int) -> None:
    """At every temperature and cut; logits are few enough apart that no rounding decides."""
    rng = random.Random(seed)
    for number in range(300):
        row = sequence(
            temperature=rng.choice([0, 0.5, 1.0, 2.0]),
            top_p=rng.choice([1.0, 0.93, 0.31, 1e-9]),
            top_k=rng.choice([0, 1, 5, 1000]),
            min_p=rng.choice([0.0, 0.037, 1.0]),
            seed=number,
        )
        logits = [rng.randrange(-30, 30) / 7 for _ in range(30)]
        expected = drawn_by_hand(logits, row.params, uniform(number, len(row.tokens)))
        assert tokens_of(torch.tensor([logits]), [row]) == [expected], row.params


def test_frequencies_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    draws = 4000
    rows = [sequence(seed=n) for n in range(draws)]
    tokens = tokens_of(probabilities.log().repeat(draws, 1), rows)
    for token, probability in enumerate(probabilities.tolist()):
        # Six standard deviations; the seeds are fixed, so this can't flicker.
        tolerance = 6 * (probability * (1 - probability) / draws) ** 0.5
        assert abs(tokens.count(token) / draws - probability) < tolerance


def test_top_p_cuts_the_tail_and_keeps_the_token_that_reaches_it() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().repeat(500, 1)
    rows = [sequence(seed=n, top_p=0.7) for n in range(500)]
    assert set(tokens_of(logits, rows)) == {0, 1}
    tiny = [sequence(seed=n, top_p=1e-9) for n in range(20)]
    assert set(tokens_of(logits[:20], tiny)) == {0}


def test_low_temperature_sharpens() -> None:
    logits = torch.tensor([1.0, 0.9]).repeat(200, 1)
    cold = tokens_of(logits, [sequence(seed=n, temperature=0.01) for n in range(200)])
    assert cold.count(0) > 190


def test_an_answer_cannot_end_before_min_tokens() -> None:
    logits = torch.tensor([[9.0, 1.0, 0.0]])
    early = sequence(temperature=0, min_tokens=1, stop_token_ids=frozenset({0}))
    assert tokens_of(logits, [early]) == [1]
    early.append(1)
    assert tokens_of(logits, [early]) == [0]
    without_stops = sequence(temperature=0, min_tokens=1)
    assert tokens_of(logits, [without_stops]) == [0]


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_constraint_beats_bias_and_min_tokens(temperature: float) -> None:
    logits = torch.tensor([[9.0, 1.0, 0.0]])
    ended = sequence(
        temperature=temperature, min_tokens=5, stop_token_ids=frozenset({2}), logit_bias=((0, 100.0), (2, -100.0))
    )
    ended.constraint = Allowing({2}, 3)
    assert tokens_of(logits, [ended]) == [2]
    ended.constraint = Allowing({1, 2}, 3)
    assert tokens_of(logits, [ended]) == [1]


def test_logprobs_are_the_model_s_own_whatever_changes_the_choice() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().repeat(3, 1)
    plain = sequence(temperature=0)
    changed = sequence(temperature=0, logit_bias=((3, 50.0),), logprobs=2)
    alone = sequence(temperature=0, logprobs=0)
    nothing, reported, chosen = sample(logits, [plain, changed, alone])
    assert nothing == Sampled(0, None)
    assert reported.token == 3 and reported.logprobs is not None and chosen.logprobs is not None
    assert reported.logprobs.logprob == pytest.approx(torch.tensor(0.05).log().item())
    assert [token for token, _ in reported.logprobs.top] == [0, 1]
    assert reported.logprobs.top[1][1] == pytest.approx(torch.tensor(0.3).log().item())
    assert chosen.logprobs.top == ()
    assert chosen.logprobs.logprob == pytest.approx(torch.tensor(0.5).log().item())


def test_more_logprobs_than_tokens() -> None:
    (only,) = sample(torch.tensor([[1.0, 2.0]]), [sequence(temperature=0, logprobs=20)])
    assert only.logprobs is not None and [token for token, _ in only.logprobs.top] == [1, 0]


def test_uniform_is_spread_and_differs_by_position(seed: int) -> None:
    base = random.Random(seed).randrange(2**63)
    values = [uniform(base, position) for position in range(2000)]
    assert all(0 <= value < 1 for value in values)
    assert len(set(values)) == len(values)
    assert abs(sum(values) / len(values) - 0.5) < 0.06
