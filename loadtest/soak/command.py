"""The flags of `ryokan bench soak`. Imports nothing heavy by itself."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

_FILE_WIDTH = 150

Minutes = Annotated[float, typer.Option(min=0.1, help="Under load.")]


def run_soak(model: Path, out: Path, minutes: float, replicas: int, seed: int) -> None:
    """Prints the table and the JSON; exit status 1 where something wasn't as it should be, or it came to no end."""
    from rich.console import Console

    from loadtest.soak.errors import SoakError
    from loadtest.soak.run import SoakOptions, soak

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # However it is stopped, it stops what it has started.
        signal.signal(number, signal.default_int_handler)
    options = SoakOptions(model, out, 60 * minutes, replicas, seed=seed)
    try:
        found = asyncio.run(soak(options, Console() if sys.stdout.isatty() else Console(width=_FILE_WIDTH)))
    except SoakError as error:
        typer.echo(f"ryokan: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if found:
        raise typer.Exit(1)
