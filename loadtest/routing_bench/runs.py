"""Simulated runs, each done once: what came of one is kept under the hash of all that it depends on."""

import gc
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from gateway.routing.registry import POLICIES
from loadtest.routing_bench.cases import Case
from loadtest.routing_bench.fingerprint import fingerprint, sources
from loadtest.simulate.catalogue import find_kind
from loadtest.simulate.results import summarise
from loadtest.simulate.run import Simulation
from loadtest.simulate.simulate import fleet_shape, limits_of, make_workload, rate_scale_of

Result = dict[str, float | None]
"""Figures of a run, and its limits where the case asks for them."""


@dataclass(frozen=True, slots=True)
class Run:
    case: Case
    policy: str
    seed: int


@dataclass(frozen=True, slots=True)
class _Task:
    """Runs that share a workload."""

    runs: tuple[Run, ...]
    traces: Path | None
    kept: Path


def run_all(runs: Sequence[Run], traces: Path | None, kept: Path, jobs: int) -> dict[Run, Result]:
    """`kept`: the folder of earlier results. Raises SimulateError."""
    kept.mkdir(parents=True, exist_ok=True)
    missing = [run for run in runs if not _place(kept, run).is_file()]
    tasks = [_Task(tuple(together), traces, kept) for together in _by_workload(missing)]
    for done, line in enumerate(_do_all(tasks, jobs), 1):
        print(f"{done}/{len(tasks)} {line}", file=sys.stderr, flush=True)
    return {run: json.loads(_place(kept, run).read_bytes()) for run in runs}


def _do_all(tasks: Sequence[_Task], jobs: int) -> Iterator[str]:
    if jobs == 1:
        yield from map(_do, tasks)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from pool.map(_do, tasks)


def _by_workload(runs: Iterable[Run]) -> list[list[Run]]:
    """In the order in which they are asked for."""
    groups: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.case.name, run.seed), []).append(run)
    return list(groups.values())


def _do(task: _Task) -> str:
    """Returns a line that says which."""
    case, seed = task.runs[0].case, task.runs[0].seed
    options = replace(case.options, traces=task.traces)
    kind = find_kind(options.workload)
    shape = fleet_shape(options, kind)
    workload = make_workload(options, kind, shape, rate_scale_of(options, kind), seed)
    for run in task.runs:
        outcome = Simulation(workload, shape, run.policy, seed).run()
        result: dict[str, Any] = summarise(workload, outcome).as_dict()
        if case.with_limits:
            result |= limits_of(outcome)
        _keep(_place(task.kept, run), result)
        del outcome
        gc.collect()
    return f"{case.name}, seed {seed}: {', '.join(run.policy for run in task.runs)}"


def _keep(path: Path, result: Result) -> None:
    """All at once, so that a run which is broken off leaves no half of one."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(result))
    unfinished.replace(path)


def _place(kept: Path, run: Run) -> Path:
    return kept / f"{key(run, _simulator(), _policy(run.policy))}.json"


def key(run: Run, simulator: str, policy: str) -> str:
    """`simulator` and `policy`: fingerprints of their sources."""
    parts = {
        "options": asdict(replace(run.case.options, policies=(), seeds=1, traces=None)),
        "limits": run.case.with_limits,
        "policy": [run.policy, policy],
        "seed": run.seed,
        "simulator": simulator,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


@cache
def _policy(name: str) -> str:
    return fingerprint(sources(POLICIES[name].__module__).values())


@cache
def _simulator() -> str:
    """All but the policies, and why they chose as they did, which changes nothing."""
    policies = {make.__module__ for make in POLICIES.values()}
    without = {*policies, "gateway.routing.registry", "gateway.routing.reason"}
    return fingerprint(sources("loadtest.simulate.simulate", without).values())
