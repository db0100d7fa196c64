"""Policies by name: adding one is its file and one line here."""

from collections.abc import Callable

from gateway.routing.base import Policy
from gateway.routing.least_tokens import LeastTokens
from gateway.routing.round_robin import RoundRobin
from gateway.routing.ttft import Ttft

POLICIES: dict[str, Callable[[], Policy]] = {
    "ttft": Ttft,
    "least_tokens": LeastTokens,
    "round_robin": RoundRobin,
}


class UnknownPolicy(ValueError):
    """No policy has this name; the message lists those that exist."""


def make_policy(name: str) -> Policy:
    """A fresh policy. Raises UnknownPolicy."""
    if name not in POLICIES:
        raise UnknownPolicy(f"unknown policy {name!r}; there are {', '.join(sorted(POLICIES))}")
    return POLICIES[name]()
