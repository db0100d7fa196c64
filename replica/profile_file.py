"""A profile by name, from a JSON file, or from a running replica."""

import math
import urllib.request
from dataclasses import asdict, fields
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from replica.profiles import Profile, UnknownProfile, find_profile

_TIMEOUT_S = 10.0
_OPTIONAL = ("decode_by_use", "decode_floor")
_FROM_ONE = ("max_step_tokens", "max_running", "kv_tokens")


class ProfileError(ValueError):
    """There is no such profile, or it doesn't hold what one must; the message names it."""


def read_profile(name: str) -> Profile:
    """`name` is a profile's, or a JSON file's in the shape that `encode_profile` writes. Raises ProfileError."""
    path = Path(name)
    if path.suffix == ".json" or path.is_file():
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ProfileError(f"{path}: {error.strerror}") from error
        return decode_profile(data, str(path))
    try:
        return find_profile(name)
    except UnknownProfile as error:
        raise ProfileError(f"{error}, and files that end in .json") from error


def fetch_profile(url: str) -> Profile:
    """Of a replica at `url`, by the cost model that it has fitted until now. Raises ProfileError."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/profile", timeout=_TIMEOUT_S) as response:
            data = response.read()
    except (OSError, ValueError) as error:
        raise ProfileError(f"{url} is no replica that tells its profile: {error}") from error
    return decode_profile(data, url)


def encode_profile(profile: Profile) -> bytes:
    return orjson.dumps(asdict(profile), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def decode_profile(data: bytes, source: str) -> Profile:
    """`source` is for people. Raises ProfileError."""
    try:
        values = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ProfileError(f"{source} is no JSON: {error}") from error
    names = {item.name for item in fields(Profile)}
    if not isinstance(values, dict) or not names.issuperset(values):
        raise ProfileError(f"{source} holds no profile: an object of {', '.join(sorted(names))}")
    try:
        profile = TypeAdapter(Profile).validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ProfileError(f"{source}: {where}: {first['msg']}") from error
    for name in names - {"name", "source", *_OPTIONAL}:
        value = getattr(profile, name)
        low = 1 if name in _FROM_ONE else 0
        if not (value >= low and math.isfinite(value)):
            raise ProfileError(f"{source}: {name} must be at least {low}, not {value}")
    return profile
