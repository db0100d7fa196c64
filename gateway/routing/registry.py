"""Policies by name: adding one is its file and one line here."""

from collections.abc import Callable

from gateway.routing.base import Policy
from gateway.routing.chwbl import Chwbl
from gateway.routing.dynamo import Dynamo
from gateway.routing.least_requests import LeastRequests
from gateway.routing.least_tokens import LeastTokens
from gateway.routing.llmd import Llmd
from gateway.routing.lmetric import Lmetric
from gateway.routing.power_of_two import PowerOfTwo
from gateway.routing.preble import Preble
from gateway.routing.prefix_text import PrefixText
from gateway.routing.round_robin import RoundRobin
from gateway.routing.session import Session
from gateway.routing.sglang import Sglang, SglangLibrary
from gateway.routing.ttft import Ttft
from gateway.routing.uniform import Uniform

POLICIES: dict[str, Callable[[], Policy]] = {
    "ttft": Ttft,
    "random": Uniform,
    "round_robin": RoundRobin,
    "least_requests": LeastRequests,
    "least_tokens": LeastTokens,
    "power_of_two": PowerOfTwo,
    "session": Session,
    "chwbl": Chwbl,
    "sglang": Sglang,
    "sglang_library": SglangLibrary,
    "prefix_text": PrefixText,
    "llmd": Llmd,
    "dynamo": Dynamo,
    "lmetric": Lmetric,
    "preble": Preble,
}


class UnknownPolicy(ValueError):
    """No policy has this name; the message lists those that exist."""


def make_policy(name: str) -> Policy:
    """A fresh policy. Raises UnknownPolicy."""
    if name not in POLICIES:
        raise UnknownPolicy(f"unknown policy {name!r}; there are {', '.join(sorted(POLICIES))}")
    return POLICIES[name]()
