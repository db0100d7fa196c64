"""How far a replica's digest is borne out by what its cache gives. Pure; time is passed in.

Every answer is held against what was predicted when it was routed, in two ways:

- Of the tokens that the digest promised, how many came? Less than all of them: it promises blocks that aren't there.
- Of those that nobody promised, how many came all the same? More than a few: it is behind, or lost.

What a gateway merely expected, of requests that it had just sent there itself, is in neither: if that doesn't come
true, the gateway was wrong and not the replica; and if it does, the digest had no time to tell of it.
"""

import math
from typing import NamedTuple

from replica.protocol.hashing import BLOCK_SIZE

KEPT = 0.8
"""Of the weight of all answers before, at each answer: a replica that lies loses half its credit within four equal
ones, and within 14 however big the honest ones before were and small these are."""

WEIGHT_MIN = 256
WEIGHT_MAX = 4096
"""Answers weigh by the tokens at stake, within these bounds: a short prompt hardly outweighs a long one, and neither
does a giant one outweigh twenty after it."""

WEIGHT_AT_START = 4096
"""Of the belief that a replica, or an epoch of it, starts with: one odd answer is no lie."""

FADE_S = 600.0
"""Beliefs go back to where they started from by 1/e in this time, whether or not any request goes there: a replica
without credit might not get one that could speak for it."""

NOISE = 0.05
"""A share of unpromised tokens that digests under way and other gateways' requests explain."""


class Errors(NamedTuple):
    """Tokens that came otherwise than predicted, by whose error it was."""

    promised: int
    """By the digest, and not there."""
    expected: int
    """By this gateway, in vain."""
    unpromised: int
    """And there all the same."""


NO_ERRORS = Errors(0, 0, 0)


class Prediction(NamedTuple):
    """Of what a replica's cache would give to a prompt, as it was routed; in tokens."""

    possible: int
    """By a cache that has all of the prompt."""
    expected: int
    """In its cache, or about to be for requests that this gateway had just sent there."""
    held: int
    """In its cache, by its digest. Never more than expected."""

    def came(self, delivered: int) -> int:
        """In whole blocks, as digests tell of them: an engine may count single tokens."""
        whole = delivered - delivered % BLOCK_SIZE
        return whole if whole < self.possible else self.possible

    def errors(self, delivered: int) -> Errors:
        _, expected, held = self
        came = self.came(delivered)
        if came == held == expected:
            return NO_ERRORS
        sure = came if came > held else held
        return Errors(
            promised=held - came if held > came else 0,
            expected=expected - sure if expected > sure else 0,
            unpromised=came - expected if came > expected else 0,
        )


class Trust:
    """In one epoch of one replica."""

    __slots__ = ("_honoured", "_unpromised")

    def __init__(self) -> None:
        self._honoured = _Share(1.0)
        self._unpromised = _Share(0.0)

    def observe(self, prediction: Prediction, delivered: int, now: float) -> None:
        possible, expected, held = prediction
        came = prediction.came(delivered)
        if held > 0:
            self._honoured.observe(came if came < held else held, held, now)
        if possible > expected:
            self._unpromised.observe(came - expected if came > expected else 0, possible - expected, now)

    def honoured(self, now: float) -> float:
        """Of the tokens that the digest promises, the share to count on."""
        return self._honoured.at(now)

    def unpromised(self, now: float) -> float:
        """Of the tokens that nobody promises, the share to count on."""
        share = self._unpromised.at(now)
        return share if share > NOISE else 0.0


class _Share:
    """A mean of what came of what was at stake, weighted by the latter; the older, the less it counts."""

    __slots__ = ("_at", "_start", "_value", "_weight")

    def __init__(self, start: float) -> None:
        self._start = self._value = start
        self._weight: float = WEIGHT_AT_START
        self._at = 0.0

    def observe(self, came: int, at_stake: int, now: float) -> None:
        """`at_stake`: above 0."""
        before = self.at(now)
        weight = WEIGHT_MIN if at_stake < WEIGHT_MIN else at_stake if at_stake < WEIGHT_MAX else WEIGHT_MAX
        kept = self._weight * KEPT
        self._value = (kept * before + weight * came / at_stake) / (kept + weight)
        self._weight = kept + weight
        self._at = now

    def at(self, now: float) -> float:
        start, value = self._start, self._value
        if value == start:
            return start
        age_s = now - self._at
        return start + (value - start) * (math.exp(-age_s / FADE_S) if age_s > 0.0 else 1.0)
