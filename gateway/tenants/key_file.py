"""The file of API keys: TOML, and of each key no more than its SHA-256.

    salt_secret = "…"                 # the same at all gateways of a fleet; tenants' salts come from it

    [[keys]]
    name = "alice's laptop"           # for logs and errors
    tenant = "alice"
    sha256 = "…"                      # `ryokan keys new` makes it
    models = ["smollm2"]              # these only; and any of the limits below, for this key by itself

    [tenants.alice]                   # optional; for all keys of the tenant together
    requests_per_minute = 600
    tokens_per_minute = 100_000       # of prompts and answers
    concurrent_requests = 32
    priority_ceiling = 0              # the most urgent priority, which is the lowest number, that counts

SHA-256 without salt or stretching is enough for keys of 256 random bits: there is nothing to guess.
"""

import hashlib
import hmac
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.tenants.caller import Caller, Limits
from gateway.toml_place import toml_place

MIN_SECRET = 16
_Count = Annotated[int, Field(ge=1)]
_Label = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]*$")]


class KeyFileError(ValueError):
    """The file can't be used. The message names it and the field, and holds nothing of what the field says."""


class _Grant(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None
    concurrent_requests: _Count | None = None
    priority_ceiling: int | None = None
    models: list[str] | None = None

    @property
    def limits(self) -> Limits:
        return Limits(self.requests_per_minute, self.tokens_per_minute, self.concurrent_requests)


class _Key(_Grant):
    name: _Label
    tenant: _Label
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    salt_secret: Annotated[str, Field(min_length=MIN_SECRET)]
    keys: Annotated[list[_Key], Field(min_length=1)]
    tenants: dict[str, _Grant] = {}


@dataclass(frozen=True, slots=True)
class KeySet:
    """Callers by the hash of their key."""

    callers: Mapping[bytes, Caller] = field(repr=False)

    def __str__(self) -> str:
        return f"{len(self.callers)} keys of {len({caller.tenant for caller in self.callers.values()})} tenants"

    def find(self, presented: str) -> Caller | None:
        """The time it takes depends on the hash of what was presented, which nobody can steer towards a stored one."""
        digest = digest_of(presented)
        caller = self.callers.get(digest)
        stored = digest if caller is not None else bytes(len(digest))
        return caller if hmac.compare_digest(stored, digest) else None


def digest_of(key: str) -> bytes:
    # A header may hold bytes that are no UTF-8.
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def read_keys(path: Path, isolated: bool = True) -> KeySet:
    """`isolated`: tenants share no cached prefixes. Raises KeyFileError."""
    try:
        given = tomllib.loads(path.read_text())
    except OSError as error:
        raise KeyFileError(f"key file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise KeyFileError(f"key file {path}: {toml_place(error)}") from None
    try:
        file = _File.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise KeyFileError(f"key file {path}: {_dotted(first['loc'])}: {first['msg']}") from None
    _check_unique(path, file)
    secret = file.salt_secret.encode() if isolated else None
    return KeySet({bytes.fromhex(key.sha256): _caller(key, file.tenants.get(key.tenant), secret) for key in file.keys})


def tenant_salt(secret: bytes, tenant: str) -> str:
    """Nobody who lacks the secret can name another tenant's."""
    return hmac.new(secret, b"ryokan tenant salt v1\0" + tenant.encode(), hashlib.sha256).hexdigest()


def _caller(key: _Key, tenant: _Grant | None, secret: bytes | None) -> Caller:
    grants = [key] if tenant is None else [key, tenant]
    ceilings = [grant.priority_ceiling for grant in grants if grant.priority_ceiling is not None]
    models = [frozenset(grant.models) for grant in grants if grant.models is not None]
    by_whose = {f"tenant {key.tenant}": Limits() if tenant is None else tenant.limits, f"key {key.name}": key.limits}
    return Caller(
        key=key.name,
        tenant=key.tenant,
        limits={whose: limits for whose, limits in by_whose.items() if limits != Limits()},
        priority_ceiling=max(ceilings, default=None),
        models=frozenset.intersection(*models) if models else None,
        salt=None if secret is None else tenant_salt(secret, key.tenant),
    )


def _check_unique(path: Path, file: _File) -> None:
    for name in ("name", "sha256"):
        counts = Counter(getattr(key, name) for key in file.keys)
        for index, key in enumerate(file.keys):
            if counts[getattr(key, name)] > 1:
                raise KeyFileError(f"key file {path}: keys[{index}].{name}: two keys have the same")
    unknown = file.tenants.keys() - {key.tenant for key in file.keys}
    if unknown:
        raise KeyFileError(f"key file {path}: tenants.{sorted(unknown)[0]}: no key has this tenant")


def _dotted(location: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")
