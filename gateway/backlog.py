"""What one replica has to prefill, as a gateway knows it: its last report, dead-reckoned.

The queue is a level that sinks at the rate at which the replica prefills, and rises by what is sent to it. A report
sets it anew: that is the truth of its moment, counts a block that several prompts wait for once, and only what is left
of a prompt under way. What was sent since is added again. And it can't be more than what isn't known to be done:
requests are known one by one, our own by their leases and other gateways' by their intents, so the queue's make-up by
size is known as well. Pure.
"""

from array import array
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from gateway.routing.candidates import SIZES, Floats, size_class
from replica.protocol.records import HEARTBEAT_TTL_S

INTENT_TTL_S = HEARTBEAT_TTL_S
"""For an intent that no report covers: its gateway may be dead, and a live replica's next heartbeat is long read."""
COVERED_TTL_S = 60.0
INTENTS_MAX = 4096
FLIGHT_S = 0.002
"""A request that was sent so shortly before a report isn't in it yet."""


class _Waiting(NamedTuple):
    tokens: int
    at: float
    is_own: bool
    size: int
    """Its class, of `size_class`."""


class Backlog:
    __slots__ = (*("_reported", "_reported_at", "_waiting", "as_of", "known", "level", "sizes", "unknown"),)

    def __init__(self) -> None:
        self.level = 0.0
        """Tokens at the time `as_of`."""
        self.as_of = float("-inf")
        self.unknown = 0
        """Of the last report, what nobody has told of."""
        self.known = 0
        """What all known requests were sent with, as far as they aren't done."""
        self.sizes = array("d", bytes(8 * 2 * SIZES))
        """Of those tokens by the size of what each has uncached, then how many requests they are."""
        self._waiting: dict[Hashable, _Waiting] = {}
        self._reported = 0
        self._reported_at = float("-inf")

    @property
    def bound(self) -> int:
        return self.unknown + self.known

    @property
    def size_tokens(self) -> Floats:
        return np.frombuffer(self.sizes)[:SIZES]

    @property
    def size_counts(self) -> Floats:
        return np.frombuffer(self.sizes)[SIZES:]

    @property
    def requests(self) -> int:
        """Known to wait."""
        return len(self._waiting)

    def tokens(self, now: float, tokens_per_s: float) -> float:
        return min(max(self.requests, self.level - tokens_per_s * (now - self.as_of)), self.bound)

    def report(self, tokens: int, at: float, tokens_per_s: float) -> None:
        """What the replica says that it had before it at that time."""
        self._reported_at = self.as_of = at
        self.level = self._reported = tokens
        if tokens == 0:
            # Whoever told of them may be dead.
            for key in [key for key, one in self._waiting.items() if not one.is_own and not self._is_new(one)]:
                self.done(key)
        covered = sum(one.tokens for one in self._waiting.values() if not self._is_new(one))
        self.unknown = max(0, tokens - covered)
        for one in self._waiting.values():
            if self._is_new(one):
                self._rise(one, tokens_per_s)

    def sent(self, key: Hashable, tokens: int, at: float, tokens_per_s: float, *, is_own: bool) -> None:
        """Own requests are ended by `done` alone, others' also by `expire`."""
        waiting = self._waiting
        if key in waiting or (not is_own and len(waiting) >= INTENTS_MAX):
            return
        is_new = at > self._reported_at - FLIGHT_S
        if not (is_own or is_new or self._reported):
            # Heard of late: it is done.
            return
        size, sizes = size_class(tokens), self.sizes
        one = waiting[key] = _Waiting(tokens, at, is_own, size)
        self.known += tokens
        sizes[size] += tokens
        sizes[SIZES + size] += 1
        if is_new:
            self._rise(one, tokens_per_s)

    def done(self, key: Hashable) -> None:
        """Nothing of it is left to prefill; of one that isn't known, nothing follows."""
        one = self._waiting.pop(key, None)
        if one is not None:
            tokens, _, _, size = one
            sizes = self.sizes
            self.known -= tokens
            sizes[size] -= tokens
            sizes[SIZES + size] -= 1

    def expire(self, now: float) -> bool:
        """Whether anything has ended: call it now and then."""
        if not self._waiting:
            return False
        old = [
            key
            for key, one in self._waiting.items()
            if not one.is_own and one.at < now - (INTENT_TTL_S if self._is_new(one) else COVERED_TTL_S)
        ]
        for key in old:
            self.done(key)
        return bool(old)

    def forget_new(self) -> None:
        """No more will be heard of what others have sent: only the report stays."""
        for key in [key for key, one in self._waiting.items() if not one.is_own and self._is_new(one)]:
            self.done(key)

    def _is_new(self, one: _Waiting) -> bool:
        """Not in the report yet."""
        return one.at > self._reported_at - FLIGHT_S

    def _rise(self, one: _Waiting, tokens_per_s: float) -> None:
        level, as_of, at = self.level, self.as_of, one.at
        if at < as_of:
            at = as_of
        if level:
            level -= tokens_per_s * (at - as_of)
        self.level = (level if level > 0.0 else 0.0) + one.tokens
        self.as_of = at
