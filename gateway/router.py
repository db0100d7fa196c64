"""Fleet and index seen through the policy: where a prompt goes, and what that is expected to leave behind."""

from collections.abc import Set
from dataclasses import replace

from gateway.fleet import Fleet, Lease
from gateway.index.prefix_index import PrefixIndex
from gateway.routing.base import Decision, Policy, ReplicaView, RouteRequest
from replica.protocol.hashing import BLOCK_SIZE

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
            for waiting in self.fleet.prefilling():
                self.index.expect(waiting.replica, waiting.hashes)
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

    @staticmethod
    def _may_take(view: ReplicaView, tokens: int, tried: Set[Incarnation]) -> bool:
        return tokens <= view.max_context and (view.id, view.epoch) not in tried
