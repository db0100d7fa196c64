"""What several subcommands share: the model that they take, and how they fail."""

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from replica.model.source import DEFAULT_MODEL

MODEL_HELP = f"{DEFAULT_MODEL}, a folder in Hugging Face format, or a name on the Hugging Face hub."
Model = Annotated[str, typer.Option(help=MODEL_HELP)]
Replicas = Annotated[int, typer.Option(min=1, help="Replicas to start on this machine.")]


def resolve(model: str, with_weights: bool = True) -> tuple[Path, str]:
    """The model's folder and name. Converting the default model takes seconds, so that is said."""
    from replica.model.source import resolve_model, takes_time
    from replica.protocol.text import ModelFolderError

    try:
        if takes_time(model):
            print(f"preparing the model {model} …", file=sys.stderr, flush=True)
        return resolve_model(model, with_weights)
    except ModelFolderError as error:
        fail(str(error))


def fail(message: str) -> NoReturn:
    print(f"ryokan: {message}", file=sys.stderr)
    raise typer.Exit(1)
