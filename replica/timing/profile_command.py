"""`ryokan profile`: a running replica's fitted cost model -> a file for `--engine timing --profile FILE`."""

from pathlib import Path
from typing import Annotated

import typer


def main(
    url: Annotated[str, typer.Option(help="A replica's URL.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write; its name ends in .json.")],
) -> None:
    """Write down how quick a replica is, by what it has fitted from its own steps, so that replicas which only keep
    time can stand in for it."""
    from replica.profile_file import ProfileError, encode_profile, fetch_profile

    try:
        out.write_bytes(encode_profile(fetch_profile(url)))
    except (ProfileError, OSError) as error:
        typer.echo(f"ryokan profile: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{out} written; try: ryokan up --engine timing --profile {out}")
