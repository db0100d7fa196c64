"""Which policy rules and which one looks on: named by flags, by a file that may change at any time, or at run time."""

import asyncio
import logging
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from gateway.config import GatewayConfig
from gateway.router import Router
from gateway.routing.registry import make_policy
from gateway.routing.shadow import Shadow

log = logging.getLogger(__name__)

POLL_S = 1.0
FIELDS = ("policy", "shadow")
_Version = tuple[int, int, int]


class PolicyFileError(ValueError):
    """The file can't be used; the message names it and what is wrong."""


@dataclass(frozen=True, slots=True)
class Names:
    policy: str
    shadow: str | None = None


def read_policy_file(path: Path) -> Names:
    """TOML, or JSON where its name ends so: `policy = "ttft"`, and perhaps `shadow = "least_tokens"`. Raises
    PolicyFileError."""
    try:
        raw = path.read_bytes()
        value = orjson.loads(raw) if path.suffix == ".json" else tomllib.loads(raw.decode())
        return check_names(value)
    except OSError as error:
        raise PolicyFileError(f"policy file {path}: {error.strerror}") from error
    except (orjson.JSONDecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PolicyFileError(f"policy file {path}: {error}") from error
    except ValueError as error:
        raise PolicyFileError(f"policy file {path}: {error}") from error


def check_names(value: Any) -> Names:
    """Raises ValueError, UnknownPolicy for a name that no policy has."""
    if not isinstance(value, dict) or "policy" not in value:
        raise ValueError('must have the field "policy"')
    unknown = value.keys() - set(FIELDS)
    if unknown:
        raise ValueError(f"unknown field {sorted(unknown)[0]!r}; there are {', '.join(FIELDS)}")
    for name in FIELDS:
        if name == "shadow" and value.get(name) is None:
            continue
        if not isinstance(value[name], str):
            raise ValueError(f"{name} must be a name")
        make_policy(value[name])
    return Names(value["policy"], value.get("shadow"))


def chosen(config: GatewayConfig) -> Names:
    """To begin with: the file's, where there is one. Raises PolicyFileError."""
    if config.policy_file is not None:
        return read_policy_file(config.policy_file)
    return Names(config.policy, config.shadow_policy)


def use(names: Names, router: Router, shadow: Shadow) -> None:
    """A policy that goes on ruling keeps what it remembers, and so does a shadow."""
    if router.policy.name != names.policy:
        router.policy = make_policy(names.policy)
    if (shadow.policy.name if shadow.policy else None) != names.shadow:
        shadow.use(make_policy(names.shadow) if names.shadow else None)


async def follow(path: Path, change: Callable[[Names], None], poll_s: float = POLL_S) -> None:
    """Until cancelled: tells of each new version of the file. One that can't be used is logged once, and no other
    comes of it."""
    known: _Version | None = None
    while True:
        version = _version(path)
        if version != known:
            known = version
            try:
                names = read_policy_file(path)
            except PolicyFileError as error:
                log.warning("%s; what ruled before goes on", error)
            else:
                log.info("policy file %s: policy %s, shadow %s", path, names.policy, names.shadow or "none")
                change(names)
        await asyncio.sleep(poll_s)


def _version(path: Path) -> _Version:
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return status.st_mtime_ns, status.st_size, status.st_ino
