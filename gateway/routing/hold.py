"""Whether a request had better wait in the gateway: where its replica has enough to do before it anyway.

To wait costs nothing as long as the replica computes others meanwhile; and whoever is sent late is sent by what is
known late. So a request is held only while what the replica computes before it lasts until well after the next time
that something can be sent there. That is: the step under way, of which nothing is heard before its end; the one after
it, which should be as full as it can be; and the way there and back.

A policy binds late where it has an attribute `binds_late = True`. Then all its requests may wait. With any other, and
whatever the policy, those wait that would else pass others of higher priority, or of tenants that have had less.
"""

import numpy as np

from gateway.routing.base import Policy
from gateway.routing.candidates import Candidates, Floats
from gateway.routing.wait import ahead_of, queue_wait_s
from replica.protocol.hashing import BLOCK_SIZE

FLIGHT_S = 0.005
"""To a replica and back, and through two event loops: a loaded gateway's 99th percentile."""

ALL = float(1 << 60)
"""As a request's size: everything that waits at the replica comes before it."""

NOTHING = 0.0
"""Likewise, nothing."""


def binds_late(policy: Policy) -> bool:
    return getattr(policy, "binds_late", False)


def horizon_s(candidates: Candidates) -> Floats:
    c = candidates
    return 2 * (c.c0 + c.c_dec * c.decoding + c.c_lin * c.step_tokens) + FLIGHT_S


def early_s(candidates: Candidates, size: Floats | float) -> Floats:
    """For how long a request of so many uncached tokens had better wait before it is sent to each; not above 0: it may
    go at once.

    Where KV for what is next is lacking nobody knows when it comes free: a request that passes nobody it shouldn't
    goes there at once, since the replica knows best what fits, and whom to preempt.
    """
    c = candidates
    sizes = np.broadcast_to(np.float64(size), c.queue_tokens.shape)
    known = c.size_tokens.sum(axis=0)
    soon = np.minimum(known, 2 * c.step_tokens) + np.where(sizes < ALL, sizes, 0.0)
    lacks_kv = (c.total_blocks > 0) & (c.active_blocks + soon / BLOCK_SIZE > c.total_blocks)
    queue = np.where(lacks_kv, np.maximum(c.queue_tokens, known), c.queue_tokens)
    wait_s = queue_wait_s(c, ahead_of(c.changed(queue_tokens=queue), sizes))
    step_s = c.c0 + c.c_dec * c.decoding
    empty_s = (c.c_lin + step_s / c.step_tokens) * queue
    early = np.where(sizes < ALL, wait_s - horizon_s(c), empty_s - FLIGHT_S)
    return np.where((queue <= 0) | (sizes <= NOTHING) | (lacks_kv & (sizes < ALL)), -np.inf, early)


def early_at(candidates: Candidates, size: float, place: int) -> float:
    """`early_s` of one of them."""
    library = candidates.library
    if library is not None:
        early: float = library.early(candidates.address, len(candidates.ids), size, place)
        return early
    return float(early_s(candidates, size)[place])


def any_idle(candidates: Candidates) -> bool:
    return candidates.figures.idle > 0
