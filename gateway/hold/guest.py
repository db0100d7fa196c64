"""A request as the waiting room knows it."""

from collections.abc import Set
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from gateway.fleet import Incarnation
from gateway.router import Considered
from gateway.routing.base import RouteRequest


class Terms(NamedTuple):
    """What a request may expect."""

    tenant: str = ""
    """Fairness is between these."""
    priority: int = 0
    """The smaller the more urgent, as at the replica."""
    deadline: float = inf
    """For the first byte, on the gateway's clock."""


ORDINARY = Terms()


@dataclass(slots=True, eq=False)
class Guest:
    request: RouteRequest
    total_tokens: int
    """Prompt and the answer that must fit with it."""
    terms: Terms = ORDINARY
    tried: Set[Incarnation] = frozenset()
    considered: Considered | None = None
    """Its decision, once it may go."""
    target: str = ""
    """The replica whose turn it waits for; empty: it isn't held."""
    uncached: int = 0
    """Prompt tokens to be computed there, as last decided."""
    open_tokens: int = 0
    """That count for its tenant until it has its first token."""
    missing: int | None = None
    """The first block that it lacks there, see room.py."""
    decided_at: float = -inf
    patience: float = inf
    """Tokens of its own tenant and class that may still go before it; see lane.py."""
    number: int = 0
    """Of the order of arrival, while it is held."""
    stranded_at: float = inf
    """Since when no replica may take it, while it is held."""
    held_at: float = inf
    held_s: float = 0.0
    """All in all."""

    @property
    def is_held(self) -> bool:
        return self.target != ""
