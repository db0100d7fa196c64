"""The `ryokan` command. Each subcommand's own code is loaded only when it is called."""

import inspect
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adopt.__main__ import main as adopt_main
from deploy import bench_cli
from deploy.common import MODEL_HELP, Model, Replicas, fail, resolve
from gateway.__main__ import options as gateway_flags
from gateway.__main__ import start as start_gateway
from gateway.__main__ import with_options
from gateway.tenants.new_key import keys_app
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

app = typer.Typer(
    name="ryokan",
    help="A multi-replica LLM server whose gateway sends each prompt to the replica that already holds its KV blocks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(bench_cli.bench, name="bench")

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
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Replicas to start on this machine. Default: 2; on GPUs one for each.")
    ] = None,
    model: Model = DEFAULT_MODEL,
    policy: Policy = "ttft",
    shadow_policy: Annotated[
        str | None, typer.Option(help="A second policy that decides along and moves no traffic.")
    ] = None,
    policy_file: Annotated[
        Path | None, typer.Option(help="File that names both policies instead, read again as it changes.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address the gateway listens on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port the gateway listens on; 0 takes a free one.")] = 8000,
    redis_url: RedisUrl = None,
    fleet: Fleet = "default",
    fleet_key_file: FleetKeyFile = None,
    device: Annotated[
        str, typer.Option(help="cpu, or cuda: each replica has a GPU to itself, and there are no more than GPUs.")
    ] = "cpu",
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

    timing_flags = _timing_flags(engine, profile, kv_tokens, time_scale, kv_memory_gib)
    cards = _cards(device, replicas)
    folder, name = resolve(model, with_weights=timing_flags is None)
    options = FleetOptions(
        folder, name, replicas or len(cards) or 2, policy, host, port, redis_url, fleet, weights, kv_memory_gib,
        fleet_key_file, timing_flags, record, shadow_policy, policy_file, cards,
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
    engine: flags.Engine = flags.EngineKind.TORCH,
    profile: flags.ProfileName = None,
    kv_tokens: flags.KvTokens = None,
    time_scale: flags.TimeScale = None,
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

    timing_flags = _timing_flags(engine, profile, kv_tokens, time_scale, kv_memory_gib)
    if timing_flags is not None and gateway is not None:
        fail("--engine timing: the replicas behind --gateway are running already")
    folder, name = resolve(model, with_weights=timing_flags is None)

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
        kv_memory_gib=kv_memory_gib, timing_flags=timing_flags,
    )  # fmt: skip
    _with_fleet(options, Console(), lambda running: run(running.gateway_url))


def _cards(device: str, replicas: int | None) -> list[str]:
    """Those that replicas are to have, none of them two; none on a CPU."""
    from deploy.cards import visible_cards

    if device == "cpu":
        return []
    if device != "cuda":
        fail(f"device: {device!r} is neither cpu nor cuda")
    cards = visible_cards(os.environ)
    if not cards:
        fail("device: cuda was asked for, and there is no GPU that torch can use")
    if replicas is not None and replicas > len(cards):
        fail(f"replicas: {replicas} are more than the {len(cards)} GPUs (device)")
    return cards


def _timing_flags(
    engine: flags.EngineKind,
    profile: str | None,
    kv_tokens: int | None,
    time_scale: float | None,
    kv_memory_gib: float | None,
) -> dict[str, str] | None:
    """Of replicas that compute nothing; None where they compute."""
    try:
        flags.timing_config(engine, profile, kv_tokens, time_scale, kv_memory_gib)
    except ConfigError as error:
        fail(str(error))
    return None if profile is None else flags.flags_of(profile, kv_tokens, time_scale)


def _gateway(**flags: Any) -> None:
    """Serve the OpenAI API, each prompt from the replica that answers it soonest."""
    start_gateway(flags, lambda model: resolve(model or DEFAULT_MODEL))


def _gateway_flags() -> dict[str, inspect.Parameter]:
    """Those of the gateway, with a `--model` that may be a name, and needn't be given."""
    flags = gateway_flags()
    model = Annotated[str | None, typer.Option(envvar="RYOKAN_MODEL", help=MODEL_HELP)]
    return flags | {"model": flags["model"].replace(annotation=model)}


app.command("gateway", short_help="Start a gateway by itself.")(with_options(_gateway, _gateway_flags()))
app.add_typer(keys_app, name="keys")
app.command("replica", short_help="Start a replica by itself, or add one to a fleet.")(replica_main)
app.command("replay", short_help="Play a recorded trace against a running fleet.")(replay_main)
app.command("simulate", short_help="Run policies on a simulated fleet, in virtual time.")(simulate_main)
app.command("profile", short_help="Write down how quick a running replica is.")(profile_main)
app.command("adopt", short_help="Make a running vLLM or SGLang server a replica of a fleet.")(adopt_main)


def main() -> None:
    app()


def _with_fleet(options: "FleetOptions", console: "Console", use: "Callable[[LocalFleet], None]") -> None:
    from deploy.local import run_fleet
    from deploy.process import ProcessFailed

    try:
        with run_fleet(options, console) as running:
            use(running)
    except ProcessFailed as error:
        fail(str(error))
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


if __name__ == "__main__":
    main()
