"""Checks of what came out of Redis: anything may be in there, and the answer is a value or a RecordError."""

import re
from collections.abc import Mapping
from typing import Any

import orjson

INTEGER_MAX = 2**53
"""Larger ones don't survive every JSON reader; nothing here comes near it."""

_DIGITS = re.compile(rb"[0-9]{1,20}")


class RecordError(ValueError):
    """A record in Redis isn't to be used. `reason` is for the metric: shape, size, id, address, signature,
    replay or root."""

    def __init__(self, message: str, reason: str = "shape") -> None:
        super().__init__(message)
        self.reason = reason


def json_object(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise RecordError(f"no JSON: {data[:40]!r}") from error
    return as_object(value, "the record")


def as_object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RecordError(f"{what} is no object")
    return value


def text(fields: Mapping[str, Any], name: str, max_length: int = 256, default: str | None = None) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str) or len(value) > max_length:
        raise RecordError(f"{name} is no text of at most {max_length} characters")
    return value


def integer(
    fields: Mapping[str, Any], name: str, low: int = 0, high: int = INTEGER_MAX, default: int | None = None
) -> int:
    value = fields.get(name, default)
    # NOTE: to Python, true is 1.
    if type(value) is not int or not low <= value <= high:
        raise RecordError(f"{name} is no whole number from {low} to {high}")
    return value


def seconds(fields: Mapping[str, Any], name: str) -> float:
    value = fields.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1e6:
        raise RecordError(f"{name} is no number of seconds")
    return float(value)


def entry_text(fields: Mapping[bytes, bytes], name: bytes, max_length: int = 256) -> str:
    """A field of a stream entry as text."""
    value = _entry_bytes(fields, name)
    try:
        decoded = value.decode()
    except UnicodeDecodeError as error:
        raise RecordError(f"{name.decode()} is no UTF-8") from error
    if len(decoded) > max_length:
        raise RecordError(f"{name.decode()} is longer than {max_length} characters")
    return decoded


def entry_integer(fields: Mapping[bytes, bytes], name: bytes, high: int = INTEGER_MAX) -> int:
    """A field of a stream entry as a whole number, written in digits alone."""
    value = _entry_bytes(fields, name)
    # NOTE: int() also takes blanks, signs, underscores and other alphabets' digits.
    if not _DIGITS.fullmatch(value) or (number := int(value)) > high:
        raise RecordError(f"{name.decode()} is no whole number up to {high}")
    return number


def _entry_bytes(fields: Mapping[bytes, bytes], name: bytes) -> bytes:
    try:
        return fields[name]
    except KeyError as error:
        raise RecordError(f"the entry lacks {name.decode()}") from error
