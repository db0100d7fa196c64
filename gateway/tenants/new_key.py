"""`ryokan keys new`: makes a key, which is shown once, and what the key file has to say of it."""

import json
import os
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from gateway.tenants.key_file import KeyFileError, digest_of, read_keys

PREFIX = "sk-ryokan-"
"""By which a key that lies where it shouldn't is known for what it is."""

keys_app = typer.Typer(help="API keys of a gateway.", no_args_is_help=True, rich_markup_mode=None)


@keys_app.callback()
def keys() -> None:
    """API keys of a gateway."""


@keys_app.command("new", short_help="Make an API key and show it once.")
def new(
    name: Annotated[str, typer.Option(help="What logs and errors call it.")],
    tenant: Annotated[str, typer.Option(help="Whose it is: keys of a tenant share limits and cached prefixes.")],
    file: Annotated[
        Path | None,
        typer.Option(help="Key file to add it to, made if there is none. Default: print the lines for it."),
    ] = None,
) -> None:
    """Make an API key. The key itself is printed and kept nowhere; the key file gets its SHA-256."""
    key = PREFIX + secrets.token_urlsafe(32)
    lines = f'[[keys]]\nname = {json.dumps(name)}\ntenant = {json.dumps(tenant)}\nsha256 = "{digest_of(key).hex()}"\n'
    if file is None:
        print(f"{key}\n\n{lines}", end="")
        return
    try:
        _add(file, lines)
    except (KeyFileError, OSError) as error:
        print(f"ryokan: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    print(key)


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def _add(file: Path, lines: str) -> None:
    """As a whole or not at all. Raises KeyFileError where the file couldn't be used afterwards, OSError."""
    text = file.read_text() if file.exists() else f'salt_secret = "{new_secret()}"\n'
    # A table ends where another begins, so the end of the file is always a place for one.
    made = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as output:
            output.write(f"{text.rstrip()}\n\n{lines}")
        if file.exists():
            made.chmod(file.stat().st_mode & 0o777)
        try:
            read_keys(made)
        except KeyFileError as error:
            raise KeyFileError(str(error).replace(str(made), str(file))) from None
        made.replace(file)
    finally:
        made.unlink(missing_ok=True)
