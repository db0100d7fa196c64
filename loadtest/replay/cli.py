"""The flags of `ryokan replay`. Imports nothing heavy by itself."""

import asyncio
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from loadtest.trace.flags import LoopName, Scale, SessionPeriod, Spread, TracePath

Url = Annotated[str, typer.Option(help="URL of a running gateway.")]
Policies = Annotated[
    str | None,
    typer.Option(help="Run the trace once for each of these, from empty caches. Default: the gateway's own, once."),
]
Rounds = Annotated[int, typer.Option(min=1, help="Repetitions, policies interleaved; figures are medians.")]
RateScale = Annotated[float, typer.Option(min=1e-6, help="Arrivals at so many times the trace's rate.")]
WarmUpText = Annotated[str, typer.Option("--warm-up", help="What isn't measured: 20s, or 10% of the requests.")]
Limit = Annotated[int | None, typer.Option(min=1, help="The first so many requests only.")]
Seed = Annotated[
    int, typer.Option(help="Of session starts and pauses; and, but for 0, of the order of what comes at once.")
]
ResetCaches = Annotated[bool, typer.Option("--reset-caches", help="Empty all caches first, also in a single run.")]
CompareSimulation = Annotated[
    bool, typer.Option("--compare-simulation", help="Simulate the same as well, and say how far that is off.")
]
Latency = Annotated[
    float | None,
    typer.Option(min=0, help="Seconds of each way, for the simulation. Default: fitted from an idle fleet."),
]
AdminKey = Annotated[
    str | None,
    typer.Option(envvar="RYOKAN_ADMIN_KEY", help="For --policies, where the gateway asks for one.", show_default=False),
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=1, help="Seconds of silence after which a request has failed.")
]
Out = Annotated[Path, typer.Option(help="Folder for report.json and report.html.")]


def main(
    trace: TracePath,
    url: Url = "http://127.0.0.1:8000",
    policies: Policies = None,
    rounds: Rounds = 1,
    loop: LoopName = None,
    scale: Scale = 1,
    rate_scale: RateScale = 1.0,
    session_period: SessionPeriod = 6.0,
    spread: Spread = 0.0,
    warm_up: WarmUpText = "0s",
    limit: Limit = None,
    seed: Seed = 0,
    reset_caches: ResetCaches = False,
    compare_simulation: CompareSimulation = False,
    latency: Latency = None,
    admin_key: AdminKey = None,
    timeout: Timeout = 300.0,
    out: Out = Path("out/replay"),
) -> None:
    """Play a trace against a running fleet, over its public API, and report what it was worth beside what it could be.

    Reads Mooncake's JSON lines, files of sessions, and what a gateway wrote with --record. Prompts are made up, of the
    trace's lengths and with its shared blocks. Prints a table; writes report.json and report.html.
    """
    from rich.console import Console

    from loadtest.errors import CompareError
    from loadtest.replay.report import publish
    from loadtest.replay.run import ReplayOptions, replay
    from loadtest.replay.warm_up import parse_warm_up
    from loadtest.trace.plan import PlanOptions

    try:
        options = ReplayOptions(
            url=url,
            trace=trace,
            out_dir=out,
            policies=tuple(part.strip() for part in (policies or "").split(",") if part.strip()),
            rounds=rounds,
            scale=scale,
            plan=PlanOptions(loop, rate_scale, session_period, seed, limit, spread),
            warm_up=parse_warm_up(warm_up),
            resets_caches=reset_caches,
            compares_simulation=compare_simulation,
            latency_s=latency,
            request_timeout_s=timeout,
            admin_key=admin_key,
            command=_command(),
        )
        report = asyncio.run(replay(options))
    except CompareError as error:
        typer.echo(f"replay: {error}", err=True)
        raise typer.Exit(1) from error
    json, html = publish(report, out, Console())
    typer.echo(f"wrote {json} and {html}")


def _command() -> str:
    """As it was called, but for a key."""
    words = ["ryokan", *sys.argv[1:]]
    for place, word in enumerate(words):
        if word.startswith("--admin-key"):
            words[place : place + (1 if "=" in word else 2)] = ["--admin-key", "…"]
            break
    return shlex.join(words)
