"""Whoever sent a request, as far as the gateway cares."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from gateway.errors import ModelNotFound
from gateway.quick_parse import changed
from replica.protocol.openai import GenerateRequest

_Request = TypeVar("_Request", bound=GenerateRequest)


@dataclass(frozen=True, slots=True)
class Limits:
    """None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Of prompts and answers together."""
    concurrent_requests: int | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """By one key."""

    key: str
    """Its name, never the key itself."""
    tenant: str
    limits: Mapping[str, Limits]
    """By whose they are: the tenant's, and the key's own. All hold at once."""
    priority_ceiling: int | None = None
    """The most urgent, which is the lowest, that a request may ask for."""
    models: frozenset[str] | None = None
    """None: all."""
    salt: str | None = None
    """Cuts the tenant's cached prefixes off from others'."""
    chooses_salt: bool = False
    """A client's own salt counts."""

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models

    def own(self, request: _Request) -> _Request:
        """The request as this caller may make it. Raises ModelNotFound, which doesn't tell whether there is one."""
        if not self.may_use(request.model):
            raise ModelNotFound(f"the model {request.model!r} does not exist, or this key may not use it")
        changes: dict[str, object] = {}
        if not self.chooses_salt:
            changes["cache_salt"] = self.salt
        if self.priority_ceiling is not None and request.priority < self.priority_ceiling:
            changes["priority"] = self.priority_ceiling
        return changed(request, changes) if changes else request


ANONYMOUS = Caller(key="", tenant="", limits={}, chooses_salt=True)
"""Where there are no keys."""
