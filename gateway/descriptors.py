"""File descriptors: as many as the system lets us have, and no more connections than that allows."""

import logging
import resource

log = logging.getLogger(__name__)

OWN = 256
"""For everything but connections."""
WANTED = 120_000
"""A stream takes two: the client's and the replica's."""


def connections_allowed() -> int:
    """Raises the soft limit as far as it goes; clients' connections that then have room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = WANTED + OWN if hard == resource.RLIM_INFINITY else min(hard, WANTED + OWN)
    if soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    limit = max(soft, limit)
    allowed = max(1, (limit - OWN) // 2)
    if allowed < 1000:
        log.warning("only %d open files are allowed (ulimit -n): at most %d connections", limit, allowed)
    return allowed
