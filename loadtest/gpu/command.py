"""The flags of the check. Imports nothing heavy by itself."""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from loadtest.gpu.limits import LIMITS_S, WHOLE_S
from loadtest.gpu.run import GpuCheckOptions, check_gpu, run_one
from loadtest.gpu.table import print_report
from replica.model.source import DEFAULT_MODEL, resolve_model
from replica.protocol.text import ModelFolderError

_FILE_WIDTH = 120

app = typer.Typer(add_completion=False)


@app.command()
def main(
    device: Annotated[str, typer.Option(help="cuda, cuda:N or cpu.")] = "cuda",
    small: Annotated[bool, typer.Option("--small", help="Tiny sizes, to test the check itself.")] = False,
    model: Annotated[str, typer.Option(help="Whose answers are compared.")] = DEFAULT_MODEL,
    out: Annotated[Path, typer.Option(help="The JSON file.")] = Path("out/gpu.json"),
    only: Annotated[str | None, typer.Option(help=f"Parts, separated by commas: {', '.join(LIMITS_S)}.")] = None,
    vllm_python: Annotated[
        Path | None, typer.Option(envvar="RYOKAN_VLLM_PYTHON", help="A Python that has vLLM, to compare with.")
    ] = None,
    whole_s: Annotated[float, typer.Option(min=1, help="Seconds for all parts.")] = WHOLE_S,
    apart: Annotated[
        bool | None, typer.Option("--apart/--here", help="A process for each part. Default: on a card.")
    ] = None,
    part: Annotated[str | None, typer.Option(hidden=True)] = None,
    record: Annotated[Path, typer.Option(hidden=True)] = Path("part.jsonl"),
    limit_s: Annotated[float, typer.Option(hidden=True)] = 60.0,
) -> None:
    """Checks the GPU path on one card; exit status 1 where a check has failed."""
    parts = tuple(LIMITS_S) if only is None else tuple(only.split(","))
    if unknown := [name for name in parts if name not in LIMITS_S]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(LIMITS_S)}", param_hint="--only")
    try:
        folder = resolve_model(model)[0]
    except ModelFolderError as error:
        raise typer.BadParameter(str(error), param_hint="--model") from error
    apart = device.startswith("cuda") if apart is None else apart
    options = GpuCheckOptions(device, folder, out, small, parts, vllm_python, whole_s, apart)
    # So that whatever stops it, it stops the servers that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if part is not None:
        run_one(options, part, record, limit_s)
        return
    report = check_gpu(options)
    print_report(report, Console() if sys.stdout.isatty() else Console(width=_FILE_WIDTH))
    typer.echo(f"wrote {out}")
    if not report.ok:
        raise typer.Exit(1)
