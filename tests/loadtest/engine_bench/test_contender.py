"""Real contender processes, on a tiny model."""

import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from loadtest.engine_bench.contender import Contender, ContenderSpec, peer_python
from loadtest.engine_bench.errors import BenchError, ContenderFailed
from tests.tiny_model import VOCAB, write_tiny_model

STEPS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    return folder


def started(program: str, *arguments: str, logs: Path, python: str = sys.executable) -> Contender:
    return Contender(ContenderSpec(program, program, arguments, python, is_peer=False), None, logs)


@pytest.fixture(scope="module")
def ours(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contender]:
    contender = started("ours", str(folder), "default", logs=tmp_path_factory.mktemp("logs"))
    yield contender
    contender.close()


def prompts(count: int, tokens: int, shared: int = 0) -> list[list[int]]:
    rng = Random(7)
    prefix = [rng.randrange(VOCAB) for _ in range(shared)]
    return [prefix + [rng.randrange(VOCAB) for _ in range(tokens - shared)] for _ in range(count)]


def test_ours_prefills_and_decodes(ours: Contender) -> None:
    seconds = ours.ask({"op": "prefill", "prompts": prompts(2, 40)})["seconds"]
    assert len(seconds) == 2 and min(seconds) > 0
    decoded = ours.ask({"op": "decode", "prompts": prompts(4, 40), "steps": STEPS})
    assert decoded["tokens_per_s"] > 0
    assert decoded["prompt_tokens_computed"] == 4 * 40


def test_agents_that_arrive_together_compute_what_they_share_once(ours: Contender) -> None:
    decoded = ours.ask({"op": "decode", "prompts": prompts(5, 40, shared=32), "steps": STEPS})
    assert decoded["prompt_tokens_computed"] == 32 + 5 * 8


def test_every_operation_begins_with_an_empty_cache(ours: Contender) -> None:
    request = {"op": "decode", "prompts": prompts(2, 40), "steps": STEPS}
    assert [ours.ask(request)["prompt_tokens_computed"] for _ in range(2)] == [80, 80]


@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (1.0, 0.95)])
def test_overhead_is_a_share_of_the_step(ours: Contender, temperature: float, top_p: float) -> None:
    request = {"op": "overhead", "prompts": prompts(4, 20), "steps": STEPS, "temperature": temperature, "top_p": top_p}
    assert 0 < ours.ask(request)["share"] < 1


def test_a_match_in_the_tree_is_timed(ours: Contender) -> None:
    assert ours.ask({"op": "match", "tokens": 100})["us"] > 0


def test_fp32_is_about_as_likely_as_int8(ours: Contender, folder: Path, tmp_path: Path) -> None:
    request = {"op": "likelihood", "windows": prompts(2, 300)}
    fp32 = started("ours", str(folder), "fp32", logs=tmp_path)
    try:
        exact = fp32.ask(request)
    finally:
        fp32.close()
    quantised = ours.ask(request)
    assert exact["tokens"] == quantised["tokens"] == 2 * 299
    assert exact["nats"] == pytest.approx(reference_nats(folder, request["windows"]), rel=1e-4)  # type: ignore[arg-type]
    assert math.log(quantised["nats"] / exact["nats"]) == pytest.approx(0, abs=0.05)


def reference_nats(folder: Path, windows: list[list[int]]) -> float:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        # Its loss is a mean over all tokens but the first.
        losses = [float(model(ids, labels=ids).loss) for ids in (torch.tensor([window]) for window in windows)]
    return sum(loss * (len(window) - 1) for loss, window in zip(losses, windows, strict=True))


def test_transformers_prefills_and_decodes(folder: Path, tmp_path: Path) -> None:
    contender = started("transformers_fp32", str(folder), logs=tmp_path)
    try:
        assert contender.version.count(".") == 2
        assert contender.ask({"op": "prefill", "prompts": prompts(1, 40)})["seconds"][0] > 0
        assert contender.ask({"op": "decode", "prompts": prompts(3, 40), "steps": STEPS})["tokens_per_s"] > 0
    finally:
        contender.close()


def test_computing_takes_no_longer_than_what_passed(folder: Path, tmp_path: Path) -> None:
    spec = ContenderSpec("ours", "ours", (str(folder), "default"), sys.executable, is_peer=False)
    contender = Contender(spec, None, tmp_path, cpu_time=True)
    try:
        started = time.perf_counter()
        computed = contender.ask({"op": "prefill", "prompts": prompts(4, 200)})["seconds"]
        # One compute thread; what little others of its threads do counts too.
        assert 0 < sum(computed) < 1.1 * (time.perf_counter() - started)
    finally:
        contender.close()


def test_one_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ContenderFailed, match=r"ours has ended: .*nowhere.* \(log: .*ours.log\)"):
        started("ours", str(tmp_path / "nowhere"), "default", logs=tmp_path)


def test_one_that_fails_says_why_and_answers_no_more(folder: Path, tmp_path: Path) -> None:
    contender = started("ours", str(folder), "default", logs=tmp_path)
    try:
        with pytest.raises(ContenderFailed, match="nonsense"):
            contender.ask({"op": "nonsense"})
        with pytest.raises(ContenderFailed, match="has ended"):
            contender.ask({"op": "match", "tokens": 100})
    finally:
        contender.close()


def test_a_peer_sees_nothing_of_ours_but_the_load_tests(tmp_path: Path) -> None:
    spec = ContenderSpec("stub", "llama_cpp", ("no.gguf",), str(tmp_path / "python"), is_peer=True)
    script = f'#!/bin/sh\nls > {tmp_path}/seen\nexec {sys.executable} -c \'print("{{\\"version\\": \\"1\\"}}")\'\n'
    (tmp_path / "python").write_text(script)
    (tmp_path / "python").chmod(0o755)
    Contender(spec, None, tmp_path).close()
    assert (tmp_path / "seen").read_text().split() == ["loadtest"]


def test_a_python_that_is_none_names_its_flag(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="--vllm-python"):
        peer_python("--vllm-python", tmp_path / "nowhere", "vllm")
    assert peer_python("--vllm-python", None, "no_such_package") is None
    assert peer_python("--vllm-python", Path(sys.executable), "no_such_package") == sys.executable


def test_a_python_may_be_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert peer_python("--llama-python", Path("python"), "xllamacpp") == str(tmp_path / "python")
