"""Who goes first: by priority, then in the order that is set; and nobody waits for ever.

A sequence is *due* once it has been patient enough: then it counts as of the highest priority, for prefill and for
staying, and of those that are due the oldest goes first. What takes patience:

- Each token of a sequence that came later, is admitted before this one is prefilled, and is of no higher priority.
- A higher priority may pass for less: an eighth of its tokens count, and only against the oldest that it passes, so
  that a crowd of low priority doesn't become due all at once and keep the high ones waiting.
- Preemption: after three times a sequence is due.

The bound. When S arrives, n sequences are there that still have tokens to prefill. Of those that come later, at most 8
full steps' tokens of S's own priority or lower are admitted before S, and of higher priorities at most (n + 1) times 64
full steps' tokens; each time one becomes due, this may be overrun by what a single step admits. Then S is next: only
older ones that are due go before it, and the pages and places that come free go to it first. Those that hold them end
after their max_tokens at the latest, since nobody is preempted for one that comes after S in this order.
"""

from collections.abc import Iterable

from replica.config import Order
from replica.sequence import Sequence

PATIENCE_STEPS = 8
"""A sequence lets others by for as many tokens as this many full steps compute."""

PRIORITY_DISCOUNT = 8
"""A token of a higher priority costs this part of the patience that another one costs."""

MAX_PREEMPTIONS = 3

Place = tuple[int, int, int]


class Urgency:
    def __init__(self, order: Order, max_step_tokens: int) -> None:
        self._order = order
        self._patience = PATIENCE_STEPS * max_step_tokens

    def is_due(self, sequence: Sequence) -> bool:
        return sequence.overtaken_tokens >= self._patience or sequence.num_preemptions >= MAX_PREEMPTIONS

    def place(self, sequence: Sequence) -> Place:
        """Smaller is more urgent. Changes only where the sequence becomes due."""
        return (0, 0, sequence.arrival) if self.is_due(sequence) else (1, sequence.priority, sequence.arrival)

    def rank(self, sequence: Sequence, num_done: int) -> tuple[int, int, int, int]:
        """The order of prefill: smaller goes first. `num_done` of its tokens are computed or in the cache."""
        if self.is_due(sequence):
            return 0, 0, 0, sequence.arrival
        return 1, sequence.priority, self._by_order(sequence, num_done), sequence.arrival

    def charge(self, admitted: Sequence, pending: Iterable[Sequence]) -> bool:
        """Counts the tokens of `admitted` against those `pending` that it overtakes. True where one is due by that."""
        tokens = admitted.num_uncomputed
        oldest_lower: Sequence | None = None
        any_due = False
        for other in pending:
            if other.arrival >= admitted.arrival:
                continue
            if other.priority <= admitted.priority:
                any_due |= self._take_patience(other, tokens)
            elif oldest_lower is None or other.arrival < oldest_lower.arrival:
                oldest_lower = other
        if oldest_lower is not None:
            any_due |= self._take_patience(oldest_lower, -(-tokens // PRIORITY_DISCOUNT))
        return any_due

    def _by_order(self, sequence: Sequence, num_done: int) -> int:
        match self._order:
            case Order.SHORTEST:
                return len(sequence.tokens) - num_done
            case Order.LPM:
                return -num_done
            case Order.FCFS:
                return 0

    def _take_patience(self, sequence: Sequence, tokens: int) -> bool:
        was_due = self.is_due(sequence)
        sequence.overtaken_tokens += tokens
        return not was_due and self.is_due(sequence)
