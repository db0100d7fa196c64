"""Fleet and index seen through the policy: where a prompt goes, and what that is expected to leave behind."""

from collections.abc import Set
from dataclasses import replace

from gateway.fleet import Fleet, Lease
from gateway.index.prefix_index import EXPECT_MAX_BLOCKS, PrefixIndex
from gateway.routing.base import Decision, Policy, ReplicaView, RouteRequest
from replica.protocol.hashing import BLOCK_SIZE

RENEW_MAX_BLOCKS = EXPECT_MAX_BLOCKS // 4
"""With more, a generation of expectations would be full again at once, and each decision would renew them all."""

Incarnation = tuple[str, str]
"""Replica id and epoch: a replica that came back is another one to a request that failed on it."""


class Router:
    def __init__(self, fleet: Fleet, index: PrefixIndex, policy: Policy) -> None:
        self.fleet = fleet
        self.index = index
        self.policy = policy

    def route(self, request: RouteRequest, total_tokens: int, tried: Set[Incarnation], now: float) -> Decision | None:
        """None where no replica may take it. `total_tokens`: prompt and the answer that must fit with it."""
        views = [view for view in self.fleet.snapshot(now) if self._may_take(view, total_tokens, tried)]
        if not views:
            return None
        if self.index.expire(now):
            self._renew()
        matches = self.index.match(request.hashes)
        candidates = [
            replace(view, matched_blocks=matches[view.id].expected) if view.id in matches else view for view in views
        ]
        return self.policy.choose(request, candidates, now)

    def take(self, request: RouteRequest, decision: Decision, now: float, choices: int = 1) -> Lease:
        """The lease for a decision; its prefix is from now on expected at the replica."""
        held = request.hashes[: (request.tokens - 1) // BLOCK_SIZE]
        lease = self.fleet.lease(decision.choice, request.tokens - decision.cached_tokens, held, now, choices)
        self.index.expect(decision.choice, held)
        return lease

    def _renew(self) -> None:
        """Expects again what requests still wait for: the newest ones, as far as RENEW_MAX_BLOCKS go."""
        room = RENEW_MAX_BLOCKS
        renewed = set[tuple[str, int]]()
        for waiting in sorted(self.fleet.prefilling(), key=lambda lease: lease.taken_at, reverse=True):
            if waiting.hashes and (waiting.replica, waiting.hashes[-1]) not in renewed:
                room -= len(waiting.hashes)
                if room < 0:
                    return
                renewed.add((waiting.replica, waiting.hashes[-1]))
                self.index.expect(waiting.replica, waiting.hashes)

    @staticmethod
    def _may_take(view: ReplicaView, tokens: int, tried: Set[Incarnation]) -> bool:
        return tokens <= view.max_context and (view.id, view.epoch) not in tried
