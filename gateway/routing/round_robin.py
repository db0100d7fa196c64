"""Each replica in turn, by id. The baseline that knows nothing."""

from collections.abc import Sequence

from gateway.routing.base import Decision, ReplicaView, RouteRequest


class RoundRobin:
    name = "round_robin"

    def __init__(self) -> None:
        self._last = ""

    def choose(self, request: RouteRequest, candidates: Sequence[ReplicaView], now: float) -> Decision:
        ordered = sorted(candidates, key=lambda view: view.id)
        chosen = next((view for view in ordered if view.id > self._last), ordered[0])
        self._last = chosen.id
        terms = {view.id: {"turn": float(turn)} for turn, view in enumerate(ordered)}
        return Decision(chosen.id, chosen.cached_tokens(request), self.name, terms)
