"""`ryokan bench engine`: contenders side by side, a round at a time, then our engine by itself."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from rich.console import Console

from loadtest.engine_bench.cases import CASES, GROUPS, Case, fixed_text_windows
from loadtest.engine_bench.contender import Contender, ContenderSpec, peer_python
from loadtest.engine_bench.errors import BenchError, ContenderFailed
from loadtest.engine_bench.figures import Samples, figures_of, perplexity, rotated
from loadtest.engine_bench.replica_process import measure_replica
from loadtest.engine_bench.report import EngineReport, publish
from loadtest.machine import machine, versions
from replica.protocol.text import ModelText


@dataclass(frozen=True, slots=True)
class EngineBenchOptions:
    folder: Path
    gguf: Path | None
    """The same model for llama.cpp; None: it takes no part."""
    out_dir: Path
    rounds: int = 5
    only: tuple[str, ...] = GROUPS
    vllm_python: Path | None = None
    llama_python: Path | None = None
    with_fp32: bool = False
    """Our own fp32 among the contenders."""
    cpu_time: bool = False
    """Contenders count the time that they compute, for a machine that others use too."""
    seed: int = 1


def bench_engine(options: EngineBenchOptions, console: Console) -> EngineReport:
    """Prints its progress to stderr and its result to `console`. Raises BenchError."""
    _check(options)
    samples = Samples()
    figures: dict[str, float] = {}
    found_versions = versions()
    cases = [case for case in CASES if case.group in options.only]
    with _logs() as (logs, absent):
        specs = _contenders(options, absent)
        core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        if cases:
            with ExitStack() as stack:
                contenders = _start(
                    specs, partial(Contender, core=core, logs=logs, cpu_time=options.cpu_time), stack, absent
                )
                found_versions |= {name: contender.version for name, contender in contenders.items()}
                _run_rounds(options, cases, contenders, samples, absent)
            figures = figures_of(samples)
        if "perplexity" in options.only:
            figures["perplexity_ratio"] = _perplexity_ratio(options, core, logs)
        if "replica" in options.only:
            _say("replica process")
            rng = Random(options.seed)
            figures |= measure_replica(options.folder, _vocabulary(options.folder), options.rounds, logs, rng)
    report = EngineReport(
        machine(), found_versions, options.rounds, "cpu" if options.cpu_time else "wall", figures, absent
    )
    publish(report, samples, options.out_dir, console)
    return report


def _check(options: EngineBenchOptions) -> None:
    if unknown := [name for name in options.only if name not in GROUPS]:
        raise BenchError(f"--only: {unknown[0]!r} is none of {', '.join(GROUPS)}")


def _contenders(options: EngineBenchOptions, absent: dict[str, str]) -> list[ContenderSpec]:
    """Those that are installed; the others are noted in `absent`. Raises BenchError."""
    folder = str(options.folder)
    specs = [ContenderSpec("ours", "ours", (folder, "default"), sys.executable, is_peer=False)]
    if options.with_fp32:
        specs.append(ContenderSpec("ours_fp32", "ours", (folder, "fp32"), sys.executable, is_peer=False))
    vllm = peer_python("--vllm-python", options.vllm_python, "vllm")
    llama = peer_python("--llama-python", options.llama_python, "xllamacpp")
    transformers = peer_python("", None, "transformers")
    for name, program, python, argument, is_peer in (
        ("transformers", "transformers_fp32", transformers, folder, False),
        ("vllm_cpu", "vllm_cpu", vllm, folder, True),
        ("llama_cpp", "llama_cpp", llama, str(options.gguf), True),
    ):
        if python is None:
            absent[name] = "not installed"
        elif name == "llama_cpp" and options.gguf is None:
            absent[name] = "there is no GGUF file of this model"
        else:
            specs.append(ContenderSpec(name, program, (argument,), python, is_peer))
    return specs


def _start(
    specs: list[ContenderSpec],
    start: Callable[[ContenderSpec], Contender],
    stack: ExitStack,
    absent: dict[str, str],
) -> dict[str, Contender]:
    contenders = {}
    for spec in specs:
        _say(f"starting {spec.name}")
        try:
            contender = start(spec)
        except ContenderFailed as error:
            if spec.name == "ours":
                raise BenchError(str(error)) from error
            absent[spec.name] = f"failed: {error}"
            continue
        stack.callback(contender.close)
        contenders[spec.name] = contender
    return contenders


def _run_rounds(
    options: EngineBenchOptions,
    cases: list[Case],
    contenders: dict[str, Contender],
    samples: Samples,
    absent: dict[str, str],
) -> None:
    """Only one contender computes at a time. Raises BenchError where our own engine fails."""
    vocabulary = _vocabulary(options.folder)
    for number in range(options.rounds):
        for case in cases:
            request = case.request(Random(f"{options.seed} {number} {case.name}"), vocabulary)
            taking_part = [name for name in contenders if name in case.contenders and name not in absent]
            for name in rotated(taking_part, number):
                try:
                    values = case.samples(contenders[name].ask(request))
                except ContenderFailed as error:
                    if name == "ours":
                        raise BenchError(str(error)) from error
                    absent[name] = f"failed: {error}"
                    samples.drop(name)
                    continue
                samples.add(case.name, name, values)
                _say(f"round {number + 1}/{options.rounds} {case.name} {name}: {_numbers(values)}")


def _perplexity_ratio(options: EngineBenchOptions, core: int | None, logs: Path) -> float:
    """Of the default settings over fp32, on the fixed text. Raises BenchError."""
    windows = fixed_text_windows(ModelText.load(options.folder))
    found: list[float] = []
    for settings in ("default", "fp32"):
        spec = ContenderSpec(f"ours_{settings}", "ours", (str(options.folder), settings), sys.executable, is_peer=False)
        try:
            contender = Contender(spec, core, logs)
            try:
                answer = contender.ask({"op": "likelihood", "windows": windows})
            finally:
                contender.close()
        except ContenderFailed as error:
            raise BenchError(str(error)) from error
        found.append(perplexity(answer["nats"], answer["tokens"]))
        _say(f"perplexity of {answer['tokens']} tokens, {settings}: {found[-1]:.4f}")
    return found[0] / found[1]


@contextmanager
def _logs() -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder for logs, and who is absent; kept where something has failed, since the reasons name files in it."""
    folder = Path(tempfile.mkdtemp(prefix="ryokan-bench-"))
    absent: dict[str, str] = {}
    yield folder, absent
    if not any(reason.startswith("failed") for reason in absent.values()):
        shutil.rmtree(folder)


def _vocabulary(folder: Path) -> int:
    size: int = json.loads((folder / "config.json").read_bytes())["vocab_size"]
    return size


def _numbers(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
