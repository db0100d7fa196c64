"""How much a client may send, and how long it may take over it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Times are in seconds."""

    body: int = 8 << 20
    """Bytes, before and after decompression."""
    connections: int = 60_000
    head_s: float = 15.0
    """From a request's first byte to the end of its head."""
    body_s: float = 30.0
    """For a body, and as much again as it takes at BODY_RATE: a slow line is no attack, a drip is."""
    idle_s: float = 75.0
    """Between requests."""
    stall_s: float = 120.0
    """How long a client may read nothing of what waits for it."""
    linger_s: float = 2.0
    """For a client to read its error while it still sends a body that nobody reads."""


BODY_RATE = 16 << 10
"""Bytes a second."""
PIPELINED_MAX = 64 << 10
"""Bytes of later requests kept while one is served; then the socket isn't read."""
WRITE_HIGH = 16 << 10
"""Bytes of a reply that wait for the client, above which its source pauses. A stream costs no more than that and what
the source had under way."""
