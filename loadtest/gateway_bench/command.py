"""The flags of `ryokan bench gateway`. Imports nothing heavy by itself."""

import asyncio
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

_FILE_WIDTH = 150
_QUICK = {"rounds": 1, "seconds": 0.2, "streams": 200, "distinct": 200}
_QUICK_PROXIES = ("nginx",)

Rounds = Annotated[int, typer.Option(min=1, help="Repetitions, interleaved; figures are medians.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="Of each proxy under each load in each round.")]
Streams = Annotated[int, typer.Option(min=1, help="Open at a time, for memory; fewer where descriptors are.")]
Distinct = Annotated[int, typer.Option(min=0, help="Prompts that share nothing, for memory; 0: not measured.")]
Proxies = Annotated[
    str | None,
    typer.Option(help="Beside ours and plain aiohttp, separated by commas. Default: all that are there."),
]
GatewayFlags = Annotated[str, typer.Option(help="Further flags for our own gateway, as one string.")]
ApiKey = Annotated[str | None, typer.Option(envvar="RYOKAN_BENCH_API_KEY", help="That clients send.")]
Quick = Annotated[bool, typer.Option("--quick", help="A minute: for whether it works, not for times.")]


def run_gateway_bench(
    model: Path,
    out: Path,
    peers_home: Path,
    names: str | None,
    gateway_flags: str,
    rounds: int,
    seconds: float,
    streams: int,
    distinct: int,
    api_key: str | None,
    quick: bool,
) -> None:
    """Prints the tables and the JSON; an error is one line on stderr and exit status 1."""
    from rich.console import Console

    from loadtest.gateway_bench.errors import GatewayBenchError
    from loadtest.gateway_bench.proxies import Wanted
    from loadtest.gateway_bench.run import GatewayBenchOptions, bench_gateway

    only = tuple(part.strip() for part in (names or "").split(",") if part.strip())
    wanted = Wanted(peers_home, only or (_QUICK_PROXIES if quick else ()), tuple(shlex.split(gateway_flags)))
    sizes = _QUICK if quick else {"rounds": rounds, "seconds": seconds, "streams": streams, "distinct": distinct}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # However it is stopped, it stops what it has started.
        signal.signal(number, signal.default_int_handler)
    options = GatewayBenchOptions(model, out, wanted, api_key=api_key, **sizes)  # type: ignore[arg-type]
    try:
        asyncio.run(bench_gateway(options, Console() if sys.stdout.isatty() else Console(width=_FILE_WIDTH)))
    except GatewayBenchError as error:
        typer.echo(f"ryokan: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
