"""What a request says, or its caller is granted, about how long it may wait and who goes first."""

from collections.abc import Mapping
from math import inf, isfinite

from gateway.hold.guest import Terms
from replica.protocol.openai import RequestError

TIMEOUT = "x-request-timeout"
"""Header: seconds until the first byte of the answer."""

PRIORITY_MOST = 8
"""Classes that the gateway tells apart, either side of 0; a replica tells all."""


_USUAL = Terms()


def terms_of(headers: Mapping[str, str], priority: int, received_at: float, tenant: str = "") -> Terms:
    """Raises RequestError."""
    timeout = headers.get(TIMEOUT)
    if timeout is None and not priority and not tenant:
        return _USUAL
    deadline = received_at + timeout_s(timeout)
    return Terms(tenant, max(-PRIORITY_MOST, min(PRIORITY_MOST, priority)), deadline)


def timeout_s(value: str | None) -> float:
    """Infinite where nothing is said. Raises RequestError."""
    if value is None:
        return inf
    try:
        seconds = float(value)
    except ValueError:
        seconds = -inf
    if not (isfinite(seconds) and seconds > 0):
        raise RequestError(f"{TIMEOUT} must be a number of seconds above 0, not {value[:40]!r}", param=TIMEOUT)
    return seconds
