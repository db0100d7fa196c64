"""What this gateway has to tell the others, and when. Pure: publisher.py sends it.

A gateway that has heard of no other tells nothing but, every second, that it is there. Else everything of some
milliseconds goes into one entry of the stream, the first after a pause at once. What can't be sent soon isn't sent at
all: a heartbeat says it better by then.

All gateways together write at most FLEET_ENTRIES_PER_S, each its share: so many any of them can hear with a small part
of a core, and the stream holds a second of them. As for bytes, the hashes of new blocks are a part of what deltas will
say of the same blocks.

That a request is done is told as well, a row of three small numbers in an entry that is written anyway. Heartbeats
alone don't do: they come twice a second and are read four times a second, while an accelerator is done with most
prompts in a few hundredths. All intents of the last half second would count, a queue that isn't there, and only the
other gateways' share of it: each gateway would think too well of where itself sends. In the model of
tests/gateway/intents/test_others.py, at a load of 78 %, heartbeats alone are wrong by 49 % of the mean queue, with
intents that nobody ends 87 %, with intents and ends 25 %. A request that is done before its intent was sent is never
told of.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.intents.peers import HELLO_S, Peers
from replica.protocol.intents import ENTRY_MAX_DONE, ENTRY_MAX_HASHES, ENTRY_MAX_INTENTS, Done, Intent, Intents

PERIOD_S = 0.002
FLEET_ENTRIES_PER_S = 2000
DONE_WAIT_S = 0.01
"""For something to be routed, with which it goes: an end alone is less urgent, and would be every other entry."""
STALE_S = 0.5
PENDING_MAX = 1024
NEW_BLOCKS_MAX = ENTRY_MAX_HASHES // ENTRY_MAX_INTENTS
"""64 of a prompt: with 1,024 tokens of it expected at a replica the next one with this beginning follows it there."""


@dataclass(frozen=True, slots=True)
class _Routed:
    replica: str
    tokens: int
    hashes: Sequence[int]
    at: float


@dataclass(frozen=True, slots=True)
class _Done:
    number: int
    replica: str
    at: float


def _nothing() -> None: ...


def _ignore(reason: str, intents: int) -> None: ...


class Outbox:
    def __init__(self, gateway: str, dropped: Callable[[str, int], None] = _ignore) -> None:
        """`gateway`: no other process's. `dropped` is told of intents that are not sent, with the reason."""
        self.gateway = gateway
        self.peers = Peers()
        self.wake: Callable[[], None] = _nothing
        """Called when there is something new to send."""
        self._dropped = dropped
        self._next = 0
        self._routed: dict[int, _Routed] = {}
        """Not sent yet, by number, oldest first."""
        self._told: dict[int, str] = {}
        """Replicas of the requests that others know of."""
        self._done: deque[_Done] = deque()
        self._sent_at = float("-inf")

    def is_heard(self, now: float) -> bool:
        """By anybody; else nothing needs to be told."""
        return self.peers.count(now) > 0

    def routed(self, replica: str, tokens: int, new_hashes: Sequence[int], now: float) -> int:
        """A request was sent there; `new_hashes`: of its blocks that the replica hasn't got. Its number."""
        number = self._next
        self._next += 1
        if self.is_heard(now):
            if len(self._routed) < PENDING_MAX:
                self._routed[number] = _Routed(replica, tokens, new_hashes[:NEW_BLOCKS_MAX], now)
                self.wake()
            else:
                self._dropped("full", 1)
        return number

    def done(self, number: int, now: float) -> None:
        """It has got its first token, or ended without one."""
        if self._routed.pop(number, None) is not None:
            return
        replica = self._told.pop(number, None)
        if replica is not None and len(self._done) < PENDING_MAX:
            self._done.append(_Done(number, replica, now))
            self.wake()

    def next_due(self, now: float) -> float:
        """When to call `take`; earlier than now where it should have been."""
        if not self._routed and not self._done:
            return self._sent_at + HELLO_S
        due = self._sent_at + max(PERIOD_S, (1 + self.peers.count(now)) / FLEET_ENTRIES_PER_S)
        return due if self._routed else max(due, self._done[0].at + DONE_WAIT_S)

    def take(self, now: float) -> Intents | None:
        """What to send now, if anything: it counts as sent. Call it again at `next_due`."""
        self._drop_stale(now - STALE_S)
        if now < self.next_due(now):
            return None
        routed = []
        for number in list(self._routed)[:ENTRY_MAX_INTENTS]:
            one = self._routed.pop(number)
            routed.append(Intent(number, one.replica, one.tokens, now - one.at, one.hashes))
            self._told[number] = one.replica
        done = [self._done.popleft() for _ in range(min(len(self._done), ENTRY_MAX_DONE))]
        self._sent_at = now
        return Intents(self.gateway, tuple(routed), tuple(Done(d.number, d.replica, now - d.at) for d in done))

    def _drop_stale(self, before: float) -> None:
        stale = [number for number, one in self._routed.items() if one.at < before]
        for number in stale:
            del self._routed[number]
        if stale:
            self._dropped("stale", len(stale))
        while self._done and self._done[0].at < before:
            self._done.popleft()
