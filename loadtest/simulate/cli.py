"""The flags of `ryokan simulate`. Imports nothing heavy by itself."""

from pathlib import Path
from typing import Annotated

import typer

from loadtest.simulate.errors import SimulateError
from loadtest.trace.flags import LoopName, Scale, SessionPeriod, Spread
from replica.config import Order

Workload = Annotated[str, typer.Option(help="Name of a workload; a wrong one lists them.")]
Policies = Annotated[str, typer.Option(help="Policies to run, separated by commas.")]
Replicas = Annotated[int | None, typer.Option(min=1, help="Default: what the workload was thought for.")]
Gateways = Annotated[int, typer.Option(min=1, help="Gateways that requests come to in turn.")]
Seeds = Annotated[int, typer.Option(min=1, help="Runs, each with arrivals of its own; figures are medians.")]
RateScale = Annotated[
    str | None, typer.Option(help="Arrivals at so many times the recorded rate; several, as in 1,1.5,2, for a ladder.")
]
ProfileName = Annotated[
    str | None, typer.Option("--profile", help="Cost profile of a replica; a wrong one lists them.")
]
KvTokens = Annotated[int | None, typer.Option(min=1024, help="KV tokens of a replica. Default: the profile's.")]
Speeds = Annotated[str, typer.Option(help="Speeds of the replicas in turn, as in 1,2,4, relative to the profile.")]
Fail = Annotated[list[str] | None, typer.Option(help="REPLICA@SECONDS: which replica dies, and when. Repeatable.")]
BackAfter = Annotated[
    float | None, typer.Option(min=0, help="Seconds until a replica that died is there again. Default: for good.")
]
DigestDelay = Annotated[float, typer.Option(min=0, help="Seconds until gateways know of a change in a cache.")]
Latency = Annotated[float, typer.Option(min=0, help="Seconds of each way between gateway and replica.")]
OrderName = Annotated[
    str | None,
    typer.Option("--order", help="Order of prompts in a replica: shortest (default), lpm or fcfs."),
]
Eviction = Annotated[str, typer.Option(help="Eviction in a replica: lru, learned, or none for no prefix cache at all.")]
PrefillOnly = Annotated[
    bool, typer.Option("--prefill-only", help="One token an answer, one prompt at a time; by arrival by default.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="The first so many requests only.")]
Traces = Annotated[
    Path | None, typer.Option(envvar="TRACES", help="Folder with recorded workloads. Made-up ones need none.")
]
TraceFilePath = Annotated[
    Path | None,
    typer.Option("--trace", help="A trace instead of a workload: what `ryokan replay --trace` takes as well."),
]
Like = Annotated[
    str | None, typer.Option(help="URL of a gateway whose replicas to simulate; the flags above change them.")
]
Out = Annotated[Path, typer.Option(help="Folder for report.json.")]

_TABLE_WIDTH = 100


def main(
    workload: Workload = "conversation",
    policies: Policies = "round_robin,least_tokens,ttft",
    replicas: Replicas = None,
    gateways: Gateways = 1,
    seeds: Seeds = 3,
    rate_scale: RateScale = None,
    profile: ProfileName = None,
    kv_tokens: KvTokens = None,
    speeds: Speeds = "1",
    fail: Fail = None,
    back_after: BackAfter = None,
    digest_delay: DigestDelay = 0.025,
    latency: Latency = 0.001,
    order: OrderName = None,
    eviction: Eviction = "lru",
    prefill_only: PrefillOnly = False,
    limit: Limit = None,
    traces: Traces = None,
    trace: TraceFilePath = None,
    loop: LoopName = None,
    scale: Scale = 1,
    session_period: SessionPeriod = 6.0,
    spread: Spread = 0.0,
    like: Like = None,
    out: Out = Path("out/simulate"),
) -> None:
    """Run policies on a simulated fleet: real scheduler, cache, index, router; virtual time.

    Prints a table and writes report.json.
    """
    from rich.console import Console

    from loadtest.simulate.ladder import climb
    from loadtest.simulate.like import fleet_at
    from loadtest.simulate.report import as_json, print_result, write_json
    from loadtest.simulate.simulate import SimulateOptions
    from loadtest.trace.plan import PlanOptions

    try:
        options = SimulateOptions(
            workload=workload,
            policies=tuple(part.strip() for part in policies.split(",") if part.strip()),
            seeds=seeds,
            replicas=replicas,
            gateways=gateways,
            profile=profile,
            kv_tokens=kv_tokens,
            speeds=_positive("--speeds", speeds),
            failures=tuple(_failure(text) for text in fail or ()),
            back_after=float("inf") if back_after is None else back_after,
            digest_delay=digest_delay,
            latency=latency,
            order=None if order is None else _order(order),
            eviction=eviction,
            prefill_only=prefill_only,
            limit=limit,
            traces=traces,
            trace=trace,
            scale=scale,
            plan=PlanOptions(loop, session_period_s=session_period, spread_s=spread),
            like=() if like is None else tuple(fleet_at(like)),
        )
        rates = () if rate_scale is None else _positive("--rate-scale", rate_scale)
        results = climb(options, rates, lambda line: typer.echo(line, err=True))
    except SimulateError as error:
        typer.echo(f"simulate: {error}", err=True)
        raise typer.Exit(1) from error
    console = Console()
    for result in results:
        print_result(result, console if console.width >= _TABLE_WIDTH else Console(width=_TABLE_WIDTH))
    write_json(as_json(results), out / "report.json")


def _positive(flag: str, text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise SimulateError(f"{flag}: {text!r} is no list of numbers") from error
    if not all(0 < value < float("inf") for value in values):
        raise SimulateError(f"{flag}: {text!r} must be more than 0")
    return values


def _failure(text: str) -> tuple[int, float]:
    replica, _, seconds = text.partition("@")
    try:
        failure = int(replica), float(seconds)
    except ValueError as error:
        raise SimulateError(f"--fail: {text!r} isn't REPLICA@SECONDS, as in 3@60") from error
    if not 0 <= failure[1] < float("inf"):
        raise SimulateError(f"--fail: {text!r} has no time from 0 on")
    return failure


def _order(text: str) -> Order:
    if text not in tuple(Order):
        raise SimulateError(f"--order: {text!r} is none of {', '.join(Order)}")
    return Order(text)
