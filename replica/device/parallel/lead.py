"""Rank 0's side of a step: what it computes, all compute."""

from replica.device.parallel.group import RUN, RankGroup
from replica.device.plan import StepPlan
from replica.device.runner import Ran, Runner, Scored, ignore


class LeadingRunner:
    """Implements `Runner`: sends each plan to the other ranks before it is run here.

    Where the host chooses a token, from logits that rank 0 has, it comes to the others as one of the next plan's
    tokens."""

    def __init__(self, runner: Runner, group: RankGroup) -> None:
        self._runner = runner
        self._group = group

    def run(self, plan: StepPlan, on_scored: Scored = ignore) -> Ran:
        """Raises RankDied."""
        self._group.send(RUN, plan)
        return self._runner.run(plan, on_scored)
