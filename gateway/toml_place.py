"""What is wrong with a TOML file, without quoting it."""

import tomllib


def toml_place(error: tomllib.TOMLDecodeError | UnicodeDecodeError) -> str:
    """Where it is wrong. A parser's own words may quote the file, which may hold secrets."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is no UTF-8 at byte {error.start}"
    _, found, place = str(error).rpartition("(at ")
    return f"it is no TOML (at {place}" if found else "it is no TOML"
