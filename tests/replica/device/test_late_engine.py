"""Both engines on the real model: random arrivals and aborts, every kind of request, and rows that can't be sampled."""

import random
from pathlib import Path

import pytest
import torch

from replica.grammar import GrammarCompiler, GrammarSpec
from replica.protocol.text import ModelText
from replica.sequence import FinishReason, SamplingParams, Sequence
from replica.step import UNUSABLE_TOKEN
from tests.engines import answers, generate, make_engine, run
from tests.replica.device.late_device import make_late_engine
from tests.tiny_model import VOCAB


def request(number: int, seed: int, text: ModelText) -> Sequence:
    rng = random.Random(seed * 1000 + number)
    shared = [rng.randrange(2)] * rng.choice([0, 16, 33])
    params = SamplingParams(
        max_tokens=rng.choice([1, 3, 12]),
        temperature=rng.choice([0, 0.7, 1.3]),
        top_p=rng.choice([1.0, 0.9]),
        seed=number,
        stop_token_ids=frozenset(rng.sample(range(VOCAB), 30)),
        min_tokens=rng.choice([0, 0, 0, 2]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.0, 1.2]),
        logprobs=rng.choice([None, None, None, 2]),
    )
    prompt = shared + [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 30))]
    sequence = Sequence(f"s{number}", prompt, params, namespace=0, priority=rng.randrange(2))
    sequence.wants_prompt_logprobs = params.logprobs is not None
    if rng.random() < 0.1:
        sequence.constraint = GrammarCompiler(text).compile(GrammarSpec("regex", "([a-z]{2,5} ){2,9}"))
    return sequence


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("num_pages", [12, 60])
def test_random_traffic(tiny_folder: Path, tiny_text: ModelText, num_pages: int, prefix_cache: bool) -> None:
    seed = num_pages + prefix_cache
    print(f"seed {seed}")
    rng = random.Random(seed)
    alone = make_engine(tiny_folder, prefix_cache=False)
    engine = make_late_engine(
        tiny_folder, num_pages=num_pages, prefix_cache=prefix_cache, max_step_tokens=40, max_running=6, seed=seed
    )
    live: list[Sequence] = []
    aborted = 0
    number = 0
    while number < 60 or engine.has_work:
        if number < 60 and rng.random() < 0.4:
            live.append(request(number, seed, tiny_text))
            engine.add(live[-1])
            number += 1
        if rng.random() < 0.03 and live:
            engine.abort(rng.choice(live))
        if engine.has_work:
            engine.step()
            engine.check_integrity()
    for again, sequence in enumerate(live):
        expected = request(again, seed, tiny_text)
        run(alone, [expected])
        (answer,), (whole,) = answers([sequence]), answers([expected])
        assert answer == whole[: len(answer)]
        aborted += len(answer) < len(whole)
    assert aborted < 30


@pytest.mark.parametrize("make", [make_engine, make_late_engine])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_no_use_ends_its_own_request(
    tiny_folder: Path,
    make: object,
    temperature: float,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert callable(make)
    expected = answers(generate(make(tiny_folder), [[5, 6, 7]], 8, temperature=temperature))
    engine = make(tiny_folder)
    model = engine._model if hasattr(engine, "_model") else engine._device.model
    logits_of, calls = model.logits, 0

    def broken(hidden: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        logits: torch.Tensor = logits_of(hidden)
        calls += 1
        if calls == 3:
            assert len(logits) == 2
            logits[bad_row] = torch.nan
        return logits

    monkeypatch.setattr(model, "logits", broken)
    params = SamplingParams(max_tokens=8, temperature=temperature)
    sequences = [Sequence("fine", [5, 6, 7], params, 0), Sequence("bad", [9, 9, 9, 9], params, 0)]
    # Rows are in the order of the pages: the one that was added first has the lower ones.
    bad_row = 1
    outputs = run(engine, sequences)
    assert answers(sequences[:1]) == expected
    assert outputs["fine"][-1].finish_reason is FinishReason.LENGTH
    assert [output.finish_reason for output in outputs["bad"]] == [None, None, FinishReason.ERROR]
    assert outputs["bad"][-1].token == UNUSABLE_TOKEN and len(sequences[1].tokens) == 6
    assert sum("bad" in record.getMessage() for record in caplog.records) == 1
