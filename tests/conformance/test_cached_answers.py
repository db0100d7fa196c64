"""What the prefix cache promises whoever asks: it shows in the time and in `num_cached`, never in an answer."""

import random
from pathlib import Path

import pytest

from replica.engine import Engine
from replica.protocol.hashing import namespace_hash
from replica.sequence import SamplingParams, Sequence
from tests.engines import make_engine
from tests.tiny_model import VOCAB

GREEDY = SamplingParams(max_tokens=12, temperature=0)
LENGTHS = [1, 15, 16, 17, 31, 32, 33, 64, 65, 100]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(length)]


def ask(engine: Engine, *prompts: list[int], namespace: int = 0, params: SamplingParams = GREEDY) -> list[Sequence]:
    sequences = [Sequence(f"s{n}", prompt, params, namespace) for n, prompt in enumerate(prompts)]
    for sequence in sequences:
        engine.add(sequence)
    while engine.scheduler.has_work:
        engine.step()
        engine.check_integrity()
    return sequences


def answer(sequence: Sequence) -> list[int]:
    return sequence.tokens[len(sequence.prompt) :]


@pytest.fixture(scope="module")
def uncached(tiny_folder: Path) -> dict[int, list[int]]:
    """Each prompt alone, in one chunk, by an engine without reuse."""
    engine = make_engine(tiny_folder, prefix_cache=False, max_step_tokens=10_000)
    return {length: answer(ask(engine, prompt_of(length))[0]) for length in LENGTHS}


@pytest.mark.parametrize("max_step_tokens", [1, 15, 16, 17, 64, 10_000])
def test_sent_three_times(tiny_folder: Path, uncached: dict[int, list[int]], max_step_tokens: int) -> None:
    engine = make_engine(tiny_folder, max_step_tokens=max_step_tokens, num_pages=200)
    for length in LENGTHS:
        prompt = prompt_of(length, seed=0)
        times = [ask(engine, prompt)[0] for _ in range(3)]
        assert [answer(sequence) for sequence in times] == [uncached[length]] * 3
        whole = (length - 1) // 16 * 16
        assert [sequence.num_cached for sequence in times[1:]] == [whole, whole]


def test_prompts_that_share_a_beginning(tiny_folder: Path) -> None:
    """Each is a prefix of the next, sent in both directions: hits end within the prompts, and at their ends."""
    prompts = [prompt_of(100)[:length] for length in LENGTHS]
    plain = make_engine(tiny_folder, prefix_cache=False)
    expected = [answer(ask(plain, prompt)[0]) for prompt in prompts]
    cached = make_engine(tiny_folder)
    for number, prompt in [*enumerate(prompts), *reversed(list(enumerate(prompts)))]:
        assert answer(ask(cached, prompt)[0]) == expected[number]


def test_one_token_only(tiny_folder: Path, uncached: dict[int, list[int]]) -> None:
    engine = make_engine(tiny_folder)
    for _ in range(3):
        for length in LENGTHS:
            (sequence,) = ask(engine, prompt_of(length), params=SamplingParams(max_tokens=1, temperature=0))
            assert answer(sequence) == uncached[length][:1]


def test_equal_prompts_at_once(tiny_folder: Path, uncached: dict[int, list[int]]) -> None:
    engine = make_engine(tiny_folder)
    for length in LENGTHS:
        pair = ask(engine, prompt_of(length), prompt_of(length))
        assert [answer(sequence) for sequence in pair] == [uncached[length]] * 2


@pytest.mark.parametrize("every", [1, 2, 3, 4, 5])
def test_forced_preemption(tiny_folder: Path, uncached: dict[int, list[int]], every: int, seed: int) -> None:
    rng = random.Random(seed)
    engine = make_engine(tiny_folder, max_step_tokens=48)
    sequences = [Sequence(f"s{n}", prompt_of(n), GREEDY, 0, priority=rng.randrange(2)) for n in LENGTHS]
    for sequence in sequences:
        engine.add(sequence)
    steps = 0
    while engine.scheduler.has_work:
        engine.step()
        steps += 1
        if steps % every == 0 and engine.scheduler.running:
            engine.scheduler.preempt(rng.choice(engine.scheduler.running))
        engine.check_integrity()
    assert sum(sequence.num_preemptions for sequence in sequences) > 0
    assert [answer(sequence) for sequence in sequences] == [uncached[length] for length in LENGTHS]


def test_salts_separate_trees(tiny_folder: Path, uncached: dict[int, list[int]]) -> None:
    engine = make_engine(tiny_folder)
    tenants = [namespace_hash(model="m", tokenizer="t", salt=salt) for salt in ("a", "b")]
    first, other, again = (ask(engine, prompt_of(100), namespace=tenants[n])[0] for n in (0, 1, 0))
    assert [first.num_cached, other.num_cached, again.num_cached] == [0, 0, 96]
    assert answer(first) == answer(other) == answer(again) == uncached[100]
    assert not set(first.hashes) & set(other.hashes)


def test_replayed_events_are_the_tree_at_every_step(tiny_folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    engine = make_engine(tiny_folder, num_pages=20, max_step_tokens=40)
    held: set[int] = set()
    evicted = 0
    for number in range(40):
        engine.add(Sequence(str(number), prompt_of(rng.randrange(1, 90), rng.randrange(5)), GREEDY, rng.randrange(2)))
        while engine.scheduler.has_work and (number == 39 or rng.random() < 0.9):
            events = engine.step().events
            assert not held & set(events.added) and held >= set(events.removed)
            held = (held - set(events.removed)) | set(events.added)
            evicted += len(events.removed)
            assert held == engine._cache.hashes()  # type: ignore[attr-defined]
    assert evicted > 20
