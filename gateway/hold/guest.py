"""A request as the waiting room knows it."""

from collections.abc import Set
from dataclasses import dataclass, field
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


@dataclass(eq=False)
class Guest:
    # NOTE: without slots, so that what most requests never need is set on the class alone.
    request: RouteRequest
    total_tokens: int
    """Prompt and the answer that must fit with it."""
    terms: Terms = ORDINARY
    tried: Set[Incarnation] = frozenset()
    considered: Considered | None = field(default=None, init=False)
    """Its decision, once it may go."""
    target: str = field(default="", init=False)
    """The replica whose turn it waits for; empty: it isn't held."""
    uncached: int = field(default=0, init=False)
    """Prompt tokens to be computed there, as last decided."""
    open_tokens: int = field(default=0, init=False)
    """That count for its tenant until it has its first token."""
    missing: int | None = field(default=None, init=False)
    """The first block that it lacks there, see room.py."""
    decided_at: float = field(default=-inf, init=False)
    patience: float = field(default=inf, init=False)
    """Tokens of its own tenant and class that may still go before it; see lane.py."""
    number: int = field(default=0, init=False)
    """Of the order of arrival, while it is held."""
    stranded_at: float = field(default=inf, init=False)
    """Since when no replica may take it, while it is held."""
    held_at: float = field(default=inf, init=False)
    held_s: float = field(default=0.0, init=False)
    """All in all."""

    @property
    def is_held(self) -> bool:
        return self.target != ""
