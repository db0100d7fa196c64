"""A CudaDevice on CPU tensors gives what the CPU's own engine gives, however a step is computed."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from replica.device.graphs import Capture
from replica.engine_base import EngineBase
from replica.grammar import GrammarCompiler, GrammarSpec
from replica.protocol.text import ModelText
from replica.sequence import FinishReason, SamplingParams, Sequence
from tests.device_engines import make_device_engine
from tests.engines import answers, generate, make_engine, run
from tests.replica.test_engine import LENGTHS, random_prompts
from tests.tiny_model import VOCAB


def replaying(compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """A graph as far as a CPU can tell: the same call, again and again, over the same tensors."""
    compute()
    return compute


@pytest.fixture(scope="module")
def oracle(tiny_folder: Path) -> list[list[int]]:
    engine = make_engine(tiny_folder, prefix_cache=False, max_step_tokens=10_000)
    return [answers(generate(engine, [prompt]))[0] for prompt in random_prompts(7, LENGTHS)]


@pytest.mark.parametrize("capture", [None, replaying], ids=["eager", "graphs"])
@pytest.mark.parametrize(("max_step_tokens", "prefix_cache"), [(1, True), (17, True), (64, False), (10_000, True)])
def test_greedy_answers_are_the_cpu_engine_s(
    tiny_folder: Path, oracle: list[list[int]], max_step_tokens: int, prefix_cache: bool, capture: Capture | None
) -> None:
    engine = make_device_engine(
        tiny_folder,
        max_step_tokens=max_step_tokens,
        prefix_cache=prefix_cache,
        num_pages=len(LENGTHS) * 8,
        capture=capture,
    )
    assert answers(generate(engine, random_prompts(7, LENGTHS))) == oracle
    again = generate(engine, random_prompts(7, LENGTHS))
    assert answers(again) == oracle
    assert any(sequence.num_cached for sequence in again) == prefix_cache


@pytest.mark.parametrize("capture", [None, replaying], ids=["eager", "graphs"])
def test_preemption_changes_nothing(tiny_folder: Path, oracle: list[list[int]], capture: Capture | None) -> None:
    engine = make_device_engine(tiny_folder, num_pages=10, max_step_tokens=64, capture=capture)
    preempted: list[Sequence] = []
    sequences = generate(
        engine, random_prompts(7, LENGTHS), on_step=lambda step: preempted.extend(step.batch.preempted)
    )
    assert preempted
    assert answers(sequences) == oracle


@pytest.mark.parametrize("seed", range(3))
def test_random_arrivals_with_all_kinds_of_sampling(tiny_folder: Path, seed: int) -> None:
    print("seed", seed)

    def sequences() -> list[Sequence]:
        rng = random.Random(seed)
        prompts = random_prompts(seed, [rng.randrange(1, 120) for _ in range(24)])
        return [
            Sequence(f"s{index}", prompt, random_params(rng), namespace=0, priority=rng.randrange(2))
            for index, prompt in enumerate(prompts)
        ]

    expected, found = sequences(), sequences()
    for one, engine in (
        (expected, make_engine(tiny_folder, num_pages=200)),
        (found, make_device_engine(tiny_folder, num_pages=40, max_step_tokens=50, capture=replaying)),
    ):
        arrive(engine, one, random.Random(seed))
    assert answers(found) == answers(expected)


def random_params(rng: random.Random) -> SamplingParams:
    kinds: list[dict[str, object]] = [
        {"temperature": 0.0},
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 20},
        {"temperature": 1.2, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 1.0, "frequency_penalty": 0.5},
        {"temperature": 0.0, "logit_bias": ((7, 3.0),)},
        {"temperature": 0.0, "min_tokens": 4, "stop_token_ids": frozenset(range(0, VOCAB, 3))},
        {"temperature": 0.0, "logprobs": 2},
    ]
    settings: dict[str, object] = {"max_tokens": rng.randrange(1, 20), "seed": rng.randrange(1000)}
    return SamplingParams(**(settings | rng.choice(kinds)))  # type: ignore[arg-type]


def arrive(engine: EngineBase, sequences: list[Sequence], rng: random.Random) -> None:
    """Some at a time, while others run."""
    waiting = list(sequences)
    while waiting or engine.has_work:
        for _ in range(min(len(waiting), rng.randrange(4))):
            engine.add(waiting.pop())
        if engine.has_work:
            engine.step()
            engine.check_integrity()


def test_logprobs_of_answer_and_prompt(tiny_folder: Path) -> None:
    def scored(engine: EngineBase) -> list[Sequence]:
        found = [
            Sequence(
                f"s{n}", prompt, SamplingParams(5, temperature=0, logprobs=3), namespace=0, wants_prompt_logprobs=True
            )
            for n, prompt in enumerate(random_prompts(3, [1, 17, 90, 100]))
        ]
        arrive(engine, found, random.Random(0))
        return found

    expected = scored(make_engine(tiny_folder))
    found = scored(make_device_engine(tiny_folder, max_step_tokens=40))
    for one, other in zip(found, expected, strict=True):
        assert one.tokens == other.tokens
        assert len(one.prompt_logprobs) == len(one.prompt)
        assert one.prompt_logprobs[0] is None
        for mine, theirs in zip(one.prompt_logprobs[1:], other.prompt_logprobs[1:], strict=True):
            assert mine is not None and theirs is not None
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]


def test_a_grammar_is_obeyed(tiny_folder: Path) -> None:
    text = ModelText.load(tiny_folder, "tiny")
    compiler = GrammarCompiler(text)
    params = SamplingParams(8, temperature=1.0, stop_token_ids=frozenset(text.stop_token_ids))
    constraint = compiler.compile(GrammarSpec("regex", "[0-9]{3}"))
    sequence = Sequence("s", [5, 6, 7], params, namespace=0, constraint=constraint)
    arrive(make_device_engine(tiny_folder), [sequence], random.Random(0))
    assert text.tokenizer.decode(sequence.tokens[3:6]).isdigit()


@pytest.mark.parametrize("kv", ["bf16", "fp8"])
def test_lower_precision_runs(tiny_folder: Path, oracle: list[list[int]], kv: str) -> None:
    engine = make_device_engine(tiny_folder, dtype="bf16", kv=kv, num_pages=96)  # type: ignore[arg-type]
    found = answers(generate(engine, random_prompts(7, LENGTHS)))
    # Random weights: near ties fall either way, and from there on answers differ.
    assert sum(one[0] == other[0] for one, other in zip(found, oracle, strict=True)) >= len(LENGTHS) * 2 // 3


def test_an_unusable_row_ends_its_own_answer_and_no_other(tiny_folder: Path, oracle: list[list[int]]) -> None:
    """NaN in the embedding of one token: whoever has it in the prompt gets nothing that could be sampled."""
    engine = make_device_engine(tiny_folder, damaged_token=299)
    prompts = random_prompts(7, LENGTHS)
    well = [index for index, prompt in enumerate(prompts) if 299 not in prompt + oracle[index]]
    sequences = [
        Sequence("ill", [4, 299, 5], SamplingParams(9, temperature=1.0, top_k=1), namespace=0),
        *(Sequence(f"s{n}", prompts[n], SamplingParams(16, temperature=0), namespace=0) for n in well),
    ]
    outputs = run(engine, sequences)
    assert outputs["ill"][-1].finish_reason is FinishReason.ERROR
    assert answers(sequences[1:]) == [oracle[index] for index in well]
