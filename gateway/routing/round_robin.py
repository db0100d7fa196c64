"""Each replica in turn, by id. The baseline that knows nothing."""

import numpy as np

from gateway.routing.base import Decision, RouteRequest, decide
from gateway.routing.candidates import Candidates


class RoundRobin:
    name = "round_robin"

    def __init__(self) -> None:
        self._last = ""

    def choose(self, request: RouteRequest, candidates: Candidates, now: float) -> Decision:
        ordered = sorted(candidates.ids)
        first = next((turn for turn, replica in enumerate(ordered) if replica > self._last), 0)
        turns = {replica: (turn - first) % len(ordered) for turn, replica in enumerate(ordered)}
        turn = np.array([turns[replica] for replica in candidates.ids], dtype=float)
        return decide(self, request, candidates, int(turn.argmin()), turn)

    def placed(self, request: RouteRequest, decision: Decision, now: float) -> None:
        self._last = decision.choice
