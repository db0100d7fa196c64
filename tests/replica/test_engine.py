"""The engine's answers never depend on how they were computed: chunks, batches, cache, preemption."""

import random
from pathlib import Path

import pytest

from replica.sequence import FinishReason, Sequence
from tests.engines import answers, generate, make_engine
from tests.tiny_model import VOCAB


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
    tiny_folder: Path, oracle: list[list[int]], max_step_tokens: int, prefix_cache: bool
) -> None:
    engine = make_engine(
        tiny_folder, max_step_tokens=max_step_tokens, prefix_cache=prefix_cache, num_pages=len(LENGTHS) * 8
    )
    assert answers(generate(engine, random_prompts(7, LENGTHS))) == oracle


def test_a_warm_cache_gives_the_same_answers(tiny_folder: Path, oracle: list[list[int]]) -> None:
    engine = make_engine(tiny_folder)
    prompts = random_prompts(7, LENGTHS)
    generate(engine, prompts)
    again = generate(engine, prompts)
    assert answers(again) == oracle
    assert [sequence.num_cached for sequence in again] == [(length - 1) // 16 * 16 for length in LENGTHS]


def test_a_second_turn_finds_the_first_one_s_answer(tiny_folder: Path) -> None:
    engine = make_engine(tiny_folder)
    (first,) = generate(engine, [random_prompts(1, [40])[0]], max_tokens=30)
    (second,) = generate(engine, [[*first.tokens, 5, 6, 7]])
    # The answer's last token was never computed, so its block isn't whole.
    assert second.num_cached == (len(first.tokens) - 1) // 16 * 16
    fresh = make_engine(tiny_folder, prefix_cache=False)
    assert answers([second]) == answers(generate(fresh, [second.prompt]))


def test_preemption_changes_nothing(tiny_folder: Path, oracle: list[list[int]]) -> None:
    """Pages for the prompts of some of them, and not for their answers."""
    engine = make_engine(tiny_folder, num_pages=10, max_step_tokens=64)
    preempted: list[Sequence] = []
    sequences = generate(
        engine, random_prompts(7, LENGTHS), on_step=lambda step: preempted.extend(step.batch.preempted)
    )
    assert preempted
    assert answers(sequences) == oracle


def test_constant_eviction_changes_nothing(tiny_folder: Path, oracle: list[list[int]]) -> None:
    engine = make_engine(tiny_folder, num_pages=8)
    prompts = random_prompts(7, LENGTHS)
    evicted: list[int] = []
    for _ in range(3):
        for prompt, expected in zip(prompts, oracle, strict=True):
            sequences = generate(engine, [prompt], on_step=lambda step: evicted.extend(step.events.removed))
            assert answers(sequences) == [expected]
    assert evicted


def test_equal_prompts_in_one_step(tiny_folder: Path) -> None:
    engine = make_engine(tiny_folder)
    prompt = random_prompts(3, [70])[0]
    a, b = generate(engine, [prompt, prompt])
    assert answers([a]) == answers([b])
    assert (a.num_cached, b.num_cached) == (0, 64)


def test_a_seeded_answer_depends_on_nothing_but_its_seed(tiny_folder: Path) -> None:
    prompts = random_prompts(7, LENGTHS)
    alone = make_engine(tiny_folder, prefix_cache=False)
    expected = [answers(generate(alone, [p], temperature=1.0, top_p=0.9, seed=5))[0] for p in prompts]
    pressed = make_engine(tiny_folder, num_pages=9, max_step_tokens=20)
    assert answers(generate(pressed, prompts, temperature=1.0, top_p=0.9, seed=5)) == expected
    assert expected != [answers(generate(alone, [p], temperature=1.0, top_p=0.9, seed=6))[0] for p in prompts]


def test_stop_tokens_end_an_answer(tiny_folder: Path) -> None:
    engine = make_engine(tiny_folder)
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


def test_events_replayed_are_the_cache(tiny_folder: Path) -> None:
    engine = make_engine(tiny_folder, num_pages=20)
    held: set[int] = set()
    for seed in range(4):
        for prompt in random_prompts(seed, [60, 90]):
            sequence = Sequence("s", prompt, generate(engine, [[1]], max_tokens=1)[0].params, namespace=0)
            engine.add(sequence)
            while engine.scheduler.has_work:
                events = engine.step().events
                held = (held - set(events.removed)) | set(events.added)
    assert held == engine._cache.hashes()  # type: ignore[attr-defined]
