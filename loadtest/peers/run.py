"""`ryokan bench peers`: routers in turns, each freshly started in front of the same replicas with empty caches."""

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson
from rich.console import Console

from loadtest.client import ChatClient, run_open_loop
from loadtest.machine import machine, versions
from loadtest.peers.errors import PeersError
from loadtest.peers.figures import Figures, figures_of_run
from loadtest.peers.fleet import RunningFleet, StepCost, call, running_fleet
from loadtest.peers.loads import LOADS, SMALL_LOADS, Load
from loadtest.peers.processes import Child, free_port
from loadtest.peers.report import PeersReport, publish
from loadtest.peers.routers import Address, Router, routers
from replica.protocol.text import ModelText

_READY_LIMIT_S = 60.0
_REQUEST_LIMIT_S = 60.0
_POLL_S = 0.05
_BASELINE_LOAD = "sessions"
_QUICK_SIZE = 0.25


@dataclass(frozen=True, slots=True)
class PeersOptions:
    folder: Path
    model: str
    peers_home: Path
    out_dir: Path
    rounds: int = 3
    replicas: int = 8
    only_peers: tuple[str, ...] = ()
    """Of the peers; none: all that are installed."""
    only_loads: tuple[str, ...] = ()
    computes: bool = False
    """The real engine in place of the one that keeps a profile's time."""
    profile: str = "h100-qwen3-32b"
    time_scale: float = 4.0
    kv_tokens: int = 22_528
    limit_s: float = 1500.0
    """No run begins after so long."""
    quick: bool = False
    seed: int = 1

    @property
    def replica_flags(self) -> list[str]:
        if self.computes:
            return ["--threads", "1", "--kv-memory-gib", "0.5"]
        flags = ["--engine", "timing", "--profile", self.profile, "--time-scale", str(self.time_scale)]
        return [*flags, "--kv-tokens", str(self.kv_tokens)]

    @property
    def size(self) -> float:
        return _QUICK_SIZE if self.quick else 1.0


@dataclass(frozen=True, slots=True)
class Run:
    round: int
    load: str
    router: Router


def schedule(found: Iterable[Router], loads: Iterable[str], rounds: int) -> list[Run]:
    """In each round all routers on each load, in an order that turns. Round robin runs once only, on one load, where it
    shows that a peer's own policy works and that all proxies are alike."""
    everybody, names = list(found), list(loads)
    baseline_load = _BASELINE_LOAD if _BASELINE_LOAD in names else names[0]
    runs = []
    for number in range(rounds):
        for place, load in enumerate(names):
            taking_part = [
                router for router in everybody if not router.is_baseline or (number == 0 and load == baseline_load)
            ]
            by = (number + place) % len(taking_part)
            runs += [Run(number, load, router) for router in taking_part[by:] + taking_part[:by]]
    return runs


async def bench_peers(options: PeersOptions, console: Console) -> PeersReport:
    """Prints its progress to stderr and its result to `console`. Raises PeersError."""
    builders = SMALL_LOADS if options.computes else LOADS
    names = options.only_loads or tuple(builders)
    if unknown := [name for name in names if name not in builders]:
        raise PeersError(f"loads: {unknown[0]!r} is none of {', '.join(builders)}")
    found, absent = routers(options.peers_home, options.only_peers)
    text = ModelText.load(options.folder, options.model)
    loads = [
        {name: builders[name](text, options.seed + number, options.size) for name in names}
        for number in range(options.rounds)
    ]
    report = PeersReport(
        machine(),
        versions() | {router.name: router.version for router in found if not (router.is_ours or router.is_baseline)},
        settings={
            "engine": "torch" if options.computes else "timing",
            "replicas": options.replicas,
            "replica_flags": " ".join(options.replica_flags),
            "rounds": options.rounds,
            "seed": options.seed,
            "loads": {name: load.about for name, load in loads[0].items()},
        },
        absent=absent,
    )
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    with _logs() as logs:
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            running_fleet(
                options.folder, options.model, options.replicas, options.replica_flags, logs, session
            ) as fleet,
        ):
            cost = None if options.computes else await fleet.step_cost()
            bench = _Bench(options, fleet, session, cost, logs)
            began = time.monotonic()
            for run in schedule(found, names, options.rounds):
                if time.monotonic() - began > options.limit_s:
                    _say(f"{options.limit_s:.0f} s are over: what is left of {options.rounds} rounds isn't run")
                    break
                _say(f"round {run.round + 1}/{options.rounds} {run.load} {run.router.name}", end=": ")
                figures = await bench.run(run, loads[run.round][run.load])
                report.add(run.load, run.router.name, figures)
                _say(_line(figures))
    publish(report, options.out_dir, console)
    return report


class _Bench:
    def __init__(
        self,
        options: PeersOptions,
        fleet: RunningFleet,
        session: aiohttp.ClientSession,
        cost: StepCost | None,
        logs: Path,
    ) -> None:
        self._options = options
        self._fleet = fleet
        self._session = session
        self._cost = cost
        self._logs = logs

    async def run(self, run: Run, load: Load) -> Figures:
        await self._fleet.reset_caches()
        port = free_port()
        command = run.router.command(self._fleet.fleet, Address(port, free_port()))
        env = {"RYOKAN_REDIS_URL": self._fleet.fleet.redis_url} if run.router.is_ours else {}
        child = Child(run.router.name, command, self._logs / "router.log", env)
        try:
            url = f"http://127.0.0.1:{port}"
            await self._wait_ready(child, run.router, url)
            client = ChatClient(self._session, url, self._fleet.fleet.model, _REQUEST_LIMIT_S)
            await self._warm_up(client, run.router)
            before, cpu_before_s = await self._fleet.done(), child.cpu_s()
            records = await run_open_loop(
                client,
                load.conversations,
                load.output_tokens,
                load.rate_per_s,
                self._options.seed + run.round,
                think_s=load.think_s,
            )
            cpu_s = child.cpu_s() - cpu_before_s
            after = await self._fleet.done()
            child.check()
        finally:
            await asyncio.to_thread(child.stop)
        done = [replica.since(earlier) for replica, earlier in zip(after, before, strict=True)]
        return figures_of_run(records, load.requests, done, cpu_s, self._cost)

    async def _wait_ready(self, child: Child, router: Router, url: str) -> None:
        """Until it routes to all replicas. Raises PeersError."""
        deadline = time.monotonic() + _READY_LIMIT_S
        path = "/ready" if router.is_ours else "/readiness"
        key = "synced" if router.is_ours else "healthy_workers"
        seen = "nothing"
        while True:
            child.check()
            try:
                _, body = await call(self._session, "GET", f"{url}{path}")
                seen = body.decode(errors="replace")
                if orjson.loads(body)[key] == self._options.replicas:
                    return
            except (PeersError, orjson.JSONDecodeError, KeyError, TypeError):
                pass
            if time.monotonic() > deadline:
                raise PeersError(
                    f"{router.name} doesn't route to all replicas after {_READY_LIMIT_S:.0f} s: {seen[:200]}"
                )
            await asyncio.sleep(_POLL_S)

    async def _warm_up(self, client: ChatClient, router: Router) -> None:
        """Short prompts of their own. Raises PeersError."""
        prompts = [
            [{"role": "system", "content": f"{number}: hello."}, {"role": "user", "content": "Hi."}]
            for number in range(2 * self._options.replicas)
        ]
        for record in await asyncio.gather(*(client.send(prompt, 2) for prompt in prompts)):
            if not record.ok:
                raise PeersError(f"{router.name} fails at once: {record.error}")


@contextmanager
def _logs() -> Iterator[Path]:
    """Kept where something has failed."""
    folder = Path(tempfile.mkdtemp(prefix="ryokan-peers-"))
    try:
        yield folder
    except PeersError as error:
        raise PeersError(f"{error} (logs: {folder})") from error
    shutil.rmtree(folder)


def _line(figures: Figures) -> str:
    names = ("ttft_mean_s", "ttft_p99_s", "hit_share", "work_max_over_mean", "step_over_profile", "failed")
    shown = ", ".join(f"{name} {figures[name]:.3g}" for name in names if name in figures)
    return f"{shown}, load {os.getloadavg()[0]:.1f}"


def _say(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)
