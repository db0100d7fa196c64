"""The flags of a comparison, and what the command line makes of its result. Imports nothing heavy by itself."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from loadtest.compare import CompareOptions
    from loadtest.peers.run import PeersOptions

Policies = Annotated[str, typer.Option(help="Policies to run, in this order, separated by commas.")]
Agents = Annotated[int, typer.Option(min=1, help="Agents, each with a conversation of its own.")]
Cities = Annotated[int, typer.Option(min=1, help="Cities that the agents ask about; agents on one share its notes.")]
Turns = Annotated[int, typer.Option(min=1, help="Turns a conversation; each repeats all that went before.")]
OutputTokens = Annotated[int, typer.Option(min=1, help="Tokens of every answer, forced.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same prompts.")]
RampS = Annotated[float, typer.Option(min=0, help="Start the agents evenly over so many seconds.")]
Rate = Annotated[float | None, typer.Option(min=1e-6, help="Open loop: conversations a second (Poisson).")]
Rounds = Annotated[int, typer.Option(min=1, help="Repetitions, interleaved; figures are medians.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for report.json and report.html.")]

PeersHome = Annotated[
    Path, typer.Option(envvar="RYOKAN_PEERS_HOME", help="Folder with a virtual environment venv-NAME for each peer.")
]
Peers = Annotated[str | None, typer.Option(help="Peers, separated by commas. Default: all that are installed.")]
Loads = Annotated[str | None, typer.Option(help="Loads, separated by commas. Default: all; a wrong one lists them.")]
LimitMin = Annotated[float, typer.Option(min=0.1, help="Minutes after which no further run begins.")]
Quick = Annotated[bool, typer.Option("--quick", help="One round of a quarter of the requests.")]

_FILE_WIDTH = 150


def run_compare(options: "CompareOptions") -> None:
    """Compares, prints the table and writes both files; an error is one line on stderr and exit status 1."""
    from rich.console import Console

    from loadtest.compare import compare
    from loadtest.errors import CompareError
    from loadtest.report import publish

    try:
        report = asyncio.run(compare(options))
    except CompareError as error:
        typer.echo(f"compare: {error}", err=True)
        raise typer.Exit(1) from error
    files = publish(report, options.out_dir, Console())
    typer.echo(f"wrote {files.json} and {files.html}")


def run_peers(options: "PeersOptions") -> None:
    """Prints the tables and the JSON; an error is one line on stderr and exit status 1."""
    from rich.console import Console

    from loadtest.peers.errors import PeersError
    from loadtest.peers.run import bench_peers

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # However it is stopped, it stops what it has started. A shell starts background jobs with SIGINT ignored.
        signal.signal(number, signal.default_int_handler)
    try:
        asyncio.run(bench_peers(options, Console() if sys.stdout.isatty() else Console(width=_FILE_WIDTH)))
    except PeersError as error:
        typer.echo(f"ryokan: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
