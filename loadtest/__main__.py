"""`python -m loadtest`: compares policies on a fleet that already runs."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from loadtest.compare import CompareOptions

Gateway = Annotated[str, typer.Option("--gateway", help="URL of the running gateway.")]
Model = Annotated[Path, typer.Option("--model", help="Folder of the served model: tokenizer and chat template.")]
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


def compare_command(
    model: Model,
    gateway: Gateway = "http://127.0.0.1:8000",
    policies: Policies = "round_robin,ttft",
    agents: Agents = 50,
    cities: Cities = 10,
    turns: Turns = 2,
    output_tokens: OutputTokens = 150,
    seed: Seed = 1,
    ramp_s: RampS = 0.0,
    rate: Rate = None,
    rounds: Rounds = 1,
    out: Out = Path("out/demo"),
) -> None:
    """Run the same load under several routing policies, each from empty caches, and compare TTFT, throughput and
    prompt tokens computed. Prints a table; writes report.json and report.html."""
    from loadtest.compare import CompareOptions

    options = CompareOptions(
        gateway_url=gateway,
        model=model,
        out_dir=out,
        policies=tuple(name.strip() for name in policies.split(",") if name.strip()),
        agents=agents,
        cities=cities,
        turns=turns,
        output_tokens=output_tokens,
        seed=seed,
        ramp_s=ramp_s,
        rate_per_s=rate,
        rounds=rounds,
    )
    run_compare(options)


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


if __name__ == "__main__":
    typer.run(compare_command)
