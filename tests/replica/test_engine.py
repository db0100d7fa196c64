"""The engine's answers never depend on how they were computed: chunks, batches, cache, preemption."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from replica.engine_base import EngineBase
from replica.grammar import GrammarCompiler, GrammarSpec
from replica.protocol.text import ModelText
from replica.sequence import ConstraintError, FinishReason, SamplingParams, Sequence
from tests.engines import answers, generate, make_engine, run
from tests.replica.device.late_device import make_late_engine
from tests.tiny_model import VOCAB

Maker = Callable[..., EngineBase]


@pytest.fixture(params=[make_engine, make_late_engine], ids=["step", "overlap"])
def make(request: pytest.FixtureRequest) -> Maker:
    """Both kinds of engine."""
    maker: Maker = request.param
    return maker


def random_prompts(seed: int, lengths: list[int]) -> list[list[int]]:
    rng = random.Random(seed)
    shared = [rng.randrange(VOCAB) for _ in range(40)]
    return [(shared + [rng.randrange(VOCAB) for _ in range(length)])[-length:] for length in lengths]


LENGTHS = [1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 100]


@pytest.fixture(scope="module")
def oracle(tiny_folder: Path) -> list[list[int]]:
    """Each prompt alone, in one chunk, without a cache."""
    engine = make_engine(tiny_folder, prefix_cache=False, max_step_tokens=10_000)
    return [answers(generate(engine, [prompt]))[0] for prompt in random_prompts(7, LENGTHS)]


@pytest.mark.parametrize("max_step_tokens", [1, 15, 16, 17, 64, 10_000])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_any_chunk_size_gives_the_same_answers(
    make: Maker, tiny_folder: Path, oracle: list[list[int]], max_step_tokens: int, prefix_cache: bool
) -> None:
    engine = make(tiny_folder, max_step_tokens=max_step_tokens, prefix_cache=prefix_cache, num_pages=len(LENGTHS) * 8)
    assert answers(generate(engine, random_prompts(7, LENGTHS))) == oracle


@pytest.mark.parametrize("max_step_tokens", [1, 17, 64])
def test_int8_kv_depends_on_chunks_no_more_than_fp32(make: Maker, tiny_folder: Path, max_step_tokens: int) -> None:
    alone = make(tiny_folder, prefix_cache=False, max_step_tokens=10_000, kv="int8")
    expected = [answers(generate(alone, [prompt]))[0] for prompt in random_prompts(7, LENGTHS)]
    together = make(tiny_folder, max_step_tokens=max_step_tokens, num_pages=len(LENGTHS) * 8, kv="int8")
    assert answers(generate(together, random_prompts(7, LENGTHS))) == expected


def test_a_warm_cache_gives_the_same_answers(make: Maker, tiny_folder: Path, oracle: list[list[int]]) -> None:
    engine = make(tiny_folder)
    prompts = random_prompts(7, LENGTHS)
    generate(engine, prompts)
    again = generate(engine, prompts)
    assert answers(again) == oracle
    assert [sequence.num_cached for sequence in again] == [(length - 1) // 16 * 16 for length in LENGTHS]


def test_a_second_turn_finds_the_first_one_s_answer(make: Maker, tiny_folder: Path) -> None:
    engine = make(tiny_folder)
    (first,) = generate(engine, [random_prompts(1, [40])[0]], max_tokens=30)
    (second,) = generate(engine, [[*first.tokens, 5, 6, 7]])
    # The answer's last token was never computed, so its block isn't whole.
    assert second.num_cached == (len(first.tokens) - 1) // 16 * 16
    fresh = make(tiny_folder, prefix_cache=False)
    assert answers([second]) == answers(generate(fresh, [second.prompt]))


def test_preemption_changes_nothing(make: Maker, tiny_folder: Path, oracle: list[list[int]]) -> None:
    """Pages for the prompts of some of them, and not for their answers."""
    engine = make(tiny_folder, num_pages=10, max_step_tokens=64)
    preempted: list[Sequence] = []
    sequences = generate(
        engine, random_prompts(7, LENGTHS), on_step=lambda step: preempted.extend(step.batch.preempted)
    )
    assert preempted
    assert answers(sequences) == oracle


def test_constant_eviction_changes_nothing(make: Maker, tiny_folder: Path, oracle: list[list[int]]) -> None:
    engine = make(tiny_folder, num_pages=8)
    prompts = random_prompts(7, LENGTHS)
    evicted: list[int] = []
    for _ in range(3):
        for prompt, expected in zip(prompts, oracle, strict=True):
            sequences = generate(engine, [prompt], on_step=lambda step: evicted.extend(step.events.removed))
            assert answers(sequences) == [expected]
    assert evicted


def test_equal_prompts_in_one_step(make: Maker, tiny_folder: Path) -> None:
    engine = make(tiny_folder)
    prompt = random_prompts(3, [70])[0]
    a, b = generate(engine, [prompt, prompt])
    assert answers([a]) == answers([b])
    assert (a.num_cached, b.num_cached) == (0, 64)


def test_a_seeded_answer_depends_on_nothing_but_its_seed(make: Maker, tiny_folder: Path) -> None:
    prompts = random_prompts(7, LENGTHS)
    alone = make(tiny_folder, prefix_cache=False)
    expected = [answers(generate(alone, [p], temperature=1.0, top_p=0.9, seed=5))[0] for p in prompts]
    pressed = make(tiny_folder, num_pages=9, max_step_tokens=20)
    assert answers(generate(pressed, prompts, temperature=1.0, top_p=0.9, seed=5)) == expected
    assert expected != [answers(generate(alone, [p], temperature=1.0, top_p=0.9, seed=6))[0] for p in prompts]


def test_stop_tokens_end_an_answer(make: Maker, tiny_folder: Path) -> None:
    engine = make(tiny_folder)
    prompt = random_prompts(2, [20])[0]
    (free,) = generate(engine, [prompt], max_tokens=10)
    stop = free.tokens[len(prompt) + 3]
    first = free.tokens[len(prompt) :].index(stop)
    reasons: list[FinishReason | None] = []
    (stopped,) = generate(
        engine,
        [prompt],
        max_tokens=10,
        stop_token_ids=frozenset({stop}),
        on_step=lambda step: reasons.extend(output.finish_reason for output in step.outputs),
    )
    assert answers([stopped])[0] == answers([free])[0][: first + 1]
    assert reasons[-1] is FinishReason.STOP


def test_events_replayed_are_the_cache(make: Maker, tiny_folder: Path) -> None:
    engine = make(tiny_folder, num_pages=20)
    held: set[int] = set()
    for seed in range(4):
        for prompt in random_prompts(seed, [60, 90]):
            sequence = Sequence("s", prompt, generate(engine, [[1]], max_tokens=1)[0].params, namespace=0)
            engine.add(sequence)
            while engine.has_work:
                events = engine.step().events
                held = (held - set(events.removed)) | set(events.added)
    assert held == engine._cache.hashes()  # type: ignore[attr-defined]


def shaped(name: str, prompt: list[int], text: ModelText) -> Sequence:
    """Every feature that changes what is sampled, at once."""
    params = SamplingParams(
        max_tokens=16,
        temperature=1.3,
        top_p=0.95,
        top_k=40,
        min_p=0.01,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        repetition_penalty=1.2,
        logit_bias=((70, 2.0), (71, -3.0)),
        seed=len(prompt),
        stop_token_ids=text.stop_token_ids,
        min_tokens=3,
        logprobs=2,
    )
    sequence = Sequence(name, prompt, params, namespace=0)
    if len(prompt) % 2:
        sequence.constraint = GrammarCompiler(text).compile(GrammarSpec("regex", "([a-z]{2,5}[,.]? ){2,9}"))
    return sequence


def test_shaped_answers_alone_are_those_in_any_company(make: Maker, tiny_folder: Path, tiny_text: ModelText) -> None:
    prompts = random_prompts(7, LENGTHS)

    def sequences() -> list[Sequence]:
        return [shaped(f"s{n}", prompt, tiny_text) for n, prompt in enumerate(prompts)]

    alone = make(tiny_folder, prefix_cache=False, max_step_tokens=10_000)
    expected = []
    for sequence in sequences():
        run(alone, [sequence])
        expected += answers([sequence])
    cached = make(tiny_folder)
    generate(cached, prompts)
    preempted: list[Sequence] = []
    pressed = make(tiny_folder, num_pages=10, max_step_tokens=20)
    for engine in (make(tiny_folder), cached, pressed):
        again = sequences()
        run(engine, again, on_step=lambda step: preempted.extend(step.batch.preempted))
        assert answers(again) == expected
    assert preempted
    texts = [tiny_text.decode(answer) for answer, prompt in zip(expected, prompts, strict=True) if len(prompt) % 2]
    assert all(character in "abcdefghijklmnopqrstuvwxyz,. " for text in texts for character in text)


class Failing:
    """Allows everything, and fails at a token."""

    is_finished = False

    def __init__(self, after: int) -> None:
        self._left = after

    def bitmask(self) -> bytes:
        return b"\xff" * 50

    def accept(self, token: int) -> None:
        self._left -= 1
        if self._left == 0:
            raise ConstraintError("too complex")


def test_a_constraint_that_fails_ends_its_own_request_alone(
    make: Maker, tiny_folder: Path, oracle: list[list[int]]
) -> None:
    engine = make(tiny_folder)
    sequences = [
        Sequence(f"s{n}", prompt, SamplingParams(max_tokens=16, temperature=0), namespace=0)
        for n, prompt in enumerate(random_prompts(7, LENGTHS))
    ]
    sequences[4].constraint = Failing(after=3)
    outputs = run(engine, sequences)
    assert [output.finish_reason for output in outputs["s4"]] == [None, None, FinishReason.ERROR]
    assert answers(sequences) == [*oracle[:4], oracle[4][:3], *oracle[5:]]


def test_outputs_carry_logprobs_of_those_who_ask(make: Maker, tiny_folder: Path) -> None:
    engine = make(tiny_folder)
    asking = SamplingParams(max_tokens=4, temperature=0, logprobs=3)
    plain = SamplingParams(max_tokens=4, temperature=0)
    prompts = random_prompts(3, [20, 30])
    outputs = run(engine, [Sequence("a", prompts[0], asking, 0), Sequence("b", prompts[1], plain, 0)])
    assert all(output.logprobs is None for output in outputs["b"])
    for output in outputs["a"]:
        assert output.logprobs is not None
        assert output.logprobs.top[0] == (output.token, output.logprobs.logprob)
        assert len(output.logprobs.top) == 3
