"""What this adapter has sent to its engine, and what that took: for the fleet's predictions. Pure.

The engine's own pages count requests; a prediction needs tokens. So pending tokens are those of our requests that wait
for their first token, by what the mirror says is cached. The cost of a prefill is fitted from requests that had the
engine's prefill to themselves.
"""

from collections.abc import Callable
from dataclasses import dataclass

from replica.cost_model import CostModelFit
from replica.step import StepWork


@dataclass(slots=True, eq=False)
class Ticket:
    """A request, from its arrival to its end."""

    tokens: int
    cached: int
    """Of these, as the mirror had it."""
    began: float
    decoding: int
    """Others that were past their first token."""
    alone: bool
    """No other prefill has come between its beginning and its first token."""
    first_at: float | None = None

    @property
    def uncached(self) -> int:
        return self.tokens - self.cached


class Traffic:
    def __init__(
        self, fit: CostModelFit, clock: Callable[[], float], on_idle: Callable[[], None] = lambda: None
    ) -> None:
        """`on_idle` is told when the last request has ended."""
        self._fit = fit
        self._on_idle = on_idle
        self._clock = clock
        self._prefilling: set[Ticket] = set()
        self._decoding: set[Ticket] = set()

    @property
    def requests(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    @property
    def prefilling(self) -> int:
        return len(self._prefilling)

    @property
    def pending_tokens(self) -> int:
        return sum(ticket.uncached for ticket in self._prefilling)

    def begin(self, tokens: int, cached: int, others_waiting: int) -> Ticket:
        """`others_waiting`: requests in the engine's queue, as far as known."""
        for ticket in self._prefilling:
            ticket.alone = False
        alone = not self._prefilling and not others_waiting
        ticket = Ticket(tokens, cached, self._clock(), len(self._decoding), alone)
        self._prefilling.add(ticket)
        return ticket

    def first_token(self, ticket: Ticket) -> None:
        if ticket in self._prefilling:
            self._prefilling.remove(ticket)
            self._decoding.add(ticket)
            ticket.first_at = self._clock()

    def delivered(self, ticket: Ticket, cached: int) -> None:
        """What the engine says it took from its cache."""
        if ticket.first_at is None or not ticket.alone:
            return
        uncached = max(1, ticket.tokens - cached)
        attention = uncached * (ticket.tokens - uncached / 2)
        self._fit.observe(StepWork(uncached, attention, ticket.decoding), ticket.first_at - ticket.began)

    def end(self, ticket: Ticket) -> None:
        self._prefilling.discard(ticket)
        self._decoding.discard(ticket)
        if not self.requests:
            self._on_idle()
