"""`ryokan bench gateway`: what a gateway costs between client and engine. Proxies in turns, in front of the same mocks;
each proxy on one core, all else on the other."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from rich.console import Console

from loadtest.gateway_bench.bindings import Job, build
from loadtest.gateway_bench.cores import cpu_s, family, on_core, split_cores
from loadtest.gateway_bench.errors import GatewayBenchError
from loadtest.gateway_bench.figures import DIRECT, Figures, of_run
from loadtest.gateway_bench.loads import LOADS, Load, prompt
from loadtest.gateway_bench.memory import SPARE_DESCRIPTORS, Gateway, Measure, distinct_memory, streams_memory
from loadtest.gateway_bench.proxies import OURS, Proxy, Wanted, ours, proxies
from loadtest.gateway_bench.report import GatewayReport, publish
from loadtest.gateway_bench.site import ANSWER_LIMIT_S, Bed, bed, raise_descriptor_limit, settle
from loadtest.machine import machine, versions
from loadtest.peers.errors import PeersError
from loadtest.peers.processes import Child, free_port
from native.build import BuildError

_PORTS = 16
_WARM_REQUESTS = 200
_WARM_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class GatewayBenchOptions:
    model: Path
    out_dir: Path
    wanted: Wanted
    rounds: int = 4
    seconds: float = 1.6
    """Of each proxy, load and round."""
    streams: int = 10_000
    """Open at a time, for memory: fewer where descriptors don't allow it."""
    distinct: int = 40_000
    """Prompts, for memory. 0: not measured."""
    api_key: str | None = None
    """That clients send."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Turn:
    round: int
    load: Load
    proxy: Proxy | None
    """None: the mock itself."""


def schedule(found: Sequence[Proxy], rounds: int) -> Iterator[Turn]:
    """In each round every load on every proxy, in an order that turns."""
    everybody = [None, *found]
    for number in range(rounds):
        for place, load in enumerate(LOADS.values()):
            by = (3 * number + place) % len(everybody)
            for proxy in everybody[by:] + everybody[:by]:
                yield Turn(number, load, proxy)


async def bench_gateway(options: GatewayBenchOptions, console: Console) -> GatewayReport:
    """Prints its progress to stderr and its result to `console`. Raises GatewayBenchError or PeersError."""
    try:
        build()
    except BuildError as error:
        raise GatewayBenchError(str(error)) from error
    descriptors = raise_descriptor_limit()
    streams = min(options.streams, (descriptors - SPARE_DESCRIPTORS) // 2)
    here, (proxy_core, other_core) = machine(), split_cores()
    prompts = list(dict.fromkeys(prompt(load.prompt_bytes) for load in LOADS.values()))
    with _logs() as folder, on_core(other_core):
        async with bed(options.model, prompts, options.seed, folder, other_core) as made:
            found, absent = proxies(made.site, options.wanted, [free_port() for _ in range(_PORTS)])
            report = GatewayReport(here, versions() | _versions(found), _settings(options, streams), absent)
            bench = _Bench(options, made, proxy_core, report)
            await bench.rounds(found)
            report.memory |= await bench.alone(lambda one: streams_memory(made, one, streams, options.api_key))
            if options.distinct:
                rng = Random(options.seed)
                report.memory |= await bench.alone(lambda one: distinct_memory(made, one, options.distinct, rng, _say))
    publish(report, options.out_dir, console)
    return report


class _Bench:
    def __init__(self, options: GatewayBenchOptions, made: Bed, core: int, report: GatewayReport) -> None:
        self._options = options
        self._bed = made
        self._core = core
        self._report = report

    async def rounds(self, found: Sequence[Proxy]) -> None:
        with ExitStack() as stack:
            children = {proxy.name: stack.enter_context(self._running(proxy)) for proxy in found}
            for proxy in found:
                _say(f"starting {proxy.name} {proxy.version}")
                await self._bed.wait_ready(proxy, children[proxy.name], self._options.api_key)
                await self._warm_up(proxy)
            for turn in schedule(found, self._options.rounds):
                name = turn.proxy.name if turn.proxy else DIRECT
                figures = await self._measure(turn, children.get(name))
                self._report.add(turn.load.name, name, figures)
                _say(f"round {turn.round + 1}/{self._options.rounds} {turn.load.name} {name}: {_line(figures)}")

    async def alone(self, measure: Measure) -> Figures:
        """On a gateway of ours that has served nothing yet."""
        proxy = ours(self._bed.site, free_port(), self._options.wanted.gateway_flags)
        with self._running(proxy) as child:
            await self._bed.wait_ready(proxy, child, self._options.api_key)
            gateway: Gateway = proxy, child.pid
            figures = await measure(gateway)
            child.check()
        _say(_line(figures))
        return figures

    @contextmanager
    def _running(self, proxy: Proxy) -> Iterator[Child]:
        with on_core(self._core):
            log = self._bed.site.folder / f"{proxy.name.replace(':', '-')}.log"
            child = Child(proxy.name, proxy.command, log, proxy.env)
        try:
            yield child
        finally:
            child.stop()

    async def _warm_up(self, proxy: Proxy) -> None:
        for load in LOADS.values():
            await self._control(load, proxy)
            requests = min(_WARM_REQUESTS, 2 * load.connections)
            job = Job(proxy.port, load.connections, _WARM_LIMIT_S, _WARM_LIMIT_S, requests, chunks=load.chunks)
            done = await self._bed.load(job, [load.body], self._options.api_key)
            if done.failed:
                raise GatewayBenchError(f"{proxy.name} fails {done.failed} requests of {load.name} at once")

    async def _control(self, load: Load, proxy: Proxy | None) -> None:
        """Only our own replicas say how much of a prompt their caches gave."""
        cached = self._bed.published.cached_tokens[prompt(load.prompt_bytes)]
        delivered = cached if proxy is not None and proxy.name == OURS else None
        await self._bed.control(gap_s=load.gap_s, chunks=max(1, load.chunks), delivered=delivered)

    async def _measure(self, turn: Turn, child: Child | None) -> Figures:
        load, seconds = turn.load, self._options.seconds
        await self._control(load, turn.proxy)
        port = self._bed.site.mock_ports[0] if turn.proxy is None else turn.proxy.port
        job = Job(
            port, load.connections, seconds, seconds + ANSWER_LIMIT_S, stagger_s=load.stagger_s, chunks=load.chunks
        )
        if child is None:
            return of_run(await self._bed.load(job, [load.body], self._options.api_key), None)
        await settle(child.pid)
        pids = family(child.pid)
        before = cpu_s(pids)
        done = await self._bed.load(job, [load.body], self._options.api_key)
        used = cpu_s(pids) - before
        child.check()
        return of_run(done, used)


def _settings(options: GatewayBenchOptions, streams: int) -> dict[str, str | int | float]:
    return {
        "rounds": options.rounds,
        "seconds": options.seconds,
        "streams": streams,
        "distinct": options.distinct,
        "gateway_flags": " ".join(options.wanted.gateway_flags),
        "seed": options.seed,
    }


def _versions(found: Sequence[Proxy]) -> dict[str, str]:
    return {proxy.name: proxy.version for proxy in found if proxy.version and not proxy.is_ours}


@contextmanager
def _logs() -> Iterator[Path]:
    """Kept where something has failed."""
    folder = Path(tempfile.mkdtemp(prefix="ryokan-gateway-bench-"))
    try:
        yield folder
    except (PeersError, GatewayBenchError) as error:
        raise GatewayBenchError(f"{error} (logs: {folder})") from error
    shutil.rmtree(folder)


def _line(figures: Figures) -> str:
    shown = ", ".join(f"{name} {value:.3g}" for name, value in figures.items() if value or name != "failed")
    return f"{shown}, load {os.getloadavg()[0]:.1f}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
