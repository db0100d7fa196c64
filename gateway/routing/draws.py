"""Chance for policies whose sources draw at random: a hash of a seed and a counter, so that equal histories give equal
choices."""

import xxhash

from gateway.routing.base import Decision, RouteRequest


class Draws:
    """Of a policy that remembers how many requests it has placed: a draw stays the same until the next of them."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._placed = 0

    def draw(self) -> int:
        """64 bits, a key for `Candidates.rendezvous`, which then chooses evenly and whatever the order."""
        return xxhash.xxh3_64_intdigest(self._placed.to_bytes(8, "little"), seed=self._seed)

    def placed(self, request: RouteRequest, decision: Decision, now: float) -> None:
        self._placed += 1
