import random
from pathlib import Path

import pytest

from replica.engine import Engine
from replica.sequence import SamplingParams, Sequence, TokenLogprobs
from tests.engines import answers, generate, make_engine, run
from tests.tiny_model import VOCAB


def random_prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(length)]


def scoring(prompt: list[int], top: int | None, name: str = "s") -> Sequence:
    params = SamplingParams(max_tokens=8, temperature=0, logprobs=top)
    return Sequence(name, prompt, params, namespace=0, wants_prompt_logprobs=True)


def prompt_logprobs_by_hand(engine: Engine, prompt: list[int], top: int) -> list[TokenLogprobs | None]:
    """Of each prefix the distribution of the token after it."""
    entries: list[TokenLogprobs | None] = [None]
    for end in range(1, len(prompt)):
        params = SamplingParams(max_tokens=1, temperature=0, logprobs=VOCAB)
        (output,) = run(engine, [Sequence("s", prompt[:end], params, 0)])["s"]
        assert output.logprobs is not None
        entries.append(TokenLogprobs(dict(output.logprobs.top)[prompt[end]], output.logprobs.top[:top]))
    return entries


def assert_close(found: list[TokenLogprobs | None], expected: list[TokenLogprobs | None]) -> None:
    assert len(found) == len(expected)
    assert found[0] is None
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert one is not None and other is not None
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
        assert [logprob for _, logprob in one.top] == pytest.approx([logprob for _, logprob in other.top], abs=1e-4)


@pytest.mark.parametrize("length", [1, 2, 16, 100])
def test_prompt_logprobs_in_any_chunks_beside_others_and_with_a_warm_cache(tiny_folder: Path, length: int) -> None:
    prompt = random_prompt(9, length)
    expected = prompt_logprobs_by_hand(make_engine(tiny_folder), prompt, top=2)
    for max_step_tokens in (1, 7, 16, 10_000):
        check_prompt_logprobs(tiny_folder, prompt, max_step_tokens, expected)


def check_prompt_logprobs(
    tiny_folder: Path, prompt: list[int], max_step_tokens: int, expected: list[TokenLogprobs | None]
) -> None:
    engine = make_engine(tiny_folder, max_step_tokens=max_step_tokens)
    warm = generate(engine, [[*prompt, 1]])
    sequences = [scoring(prompt, 2, "a"), Sequence("b", prompt, warm[0].params, 0), scoring(prompt, None, "c")]
    run(engine, sequences)
    assert_close(sequences[0].prompt_logprobs, expected)
    assert sequences[1].prompt_logprobs == []
    bare = [entry and TokenLogprobs(entry.logprob, ()) for entry in expected]
    assert_close(sequences[2].prompt_logprobs, bare)
    assert [sequence.num_cached for sequence in sequences] == [0, (len(prompt) - 1) // 16 * 16, 0]
    assert answers(sequences[:1]) == answers(generate(make_engine(tiny_folder), [prompt], max_tokens=8))


def test_preempted_prompts_have_their_logprobs_once(tiny_folder: Path) -> None:
    prompts = [random_prompt(n, 40 + n) for n in range(4)]
    plain = make_engine(tiny_folder)
    expected = [prompt_logprobs_by_hand(plain, prompt, top=1) for prompt in prompts]
    engine = make_engine(tiny_folder, num_pages=9, max_step_tokens=12)
    sequences = [scoring(prompt, 1, f"s{n}") for n, prompt in enumerate(prompts)]
    for sequence in sequences:
        sequence.params = SamplingParams(max_tokens=60, temperature=0, logprobs=1)
    preempted: list[Sequence] = []
    run(engine, sequences, on_step=lambda step: preempted.extend(step.batch.preempted))
    assert preempted
    for sequence, entries in zip(sequences, expected, strict=True):
        assert_close(sequence.prompt_logprobs, entries)
