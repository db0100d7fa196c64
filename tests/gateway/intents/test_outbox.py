from collections import Counter

import pytest

from gateway.intents.outbox import (
    DONE_WAIT_S,
    FLEET_ENTRIES_PER_S,
    NEW_BLOCKS_MAX,
    PENDING_MAX,
    PERIOD_S,
    STALE_S,
    Outbox,
)
from gateway.intents.peers import HELLO_S, PEER_TTL_S
from replica.protocol.intents import ENTRY_MAX_HASHES, ENTRY_MAX_INTENTS, Intent, Intents


class Rig:
    def __init__(self, peers: int = 1) -> None:
        self.dropped: Counter[str] = Counter()
        self.outbox = Outbox("g0", self._drop)
        self.woken = 0
        self.outbox.wake = self._wake
        for number in range(peers):
            self.outbox.peers.hear(f"p{number}", -1, 0.0)
        self.outbox.take(0.5)

    def _drop(self, reason: str, intents: int) -> None:
        self.dropped[reason] += intents

    def _wake(self) -> None:
        self.woken += 1


def test_a_gateway_alone_says_only_that_it_is_there() -> None:
    rig = Rig(peers=0)
    rig.outbox.done(rig.outbox.routed("r", 10, [1], 0.6), 0.7)
    assert rig.outbox.take(0.8) is None
    assert rig.outbox.next_due(0.8) == 0.5 + HELLO_S
    assert rig.outbox.take(0.5 + HELLO_S) == Intents("g0")
    assert rig.outbox.take(0.5 + HELLO_S) is None
    assert not rig.dropped
    assert not rig.woken


def test_it_tells_as_long_as_others_are_heard() -> None:
    rig = Rig(peers=0)
    rig.outbox.peers.hear("p", -1, 1.0)
    for now, told in ((2.0, 1), (2.0 + PEER_TTL_S, 0)):
        rig.outbox.routed("r", 10, [1], now)
        entry = rig.outbox.take(now)
        assert entry is not None
        assert len(entry.routed) == told


def test_the_first_goes_at_once_and_those_that_follow_together() -> None:
    rig = Rig()
    rig.outbox.routed("r1", 100, [1, 2], 1.0)
    assert rig.outbox.take(1.0) == Intents("g0", (Intent(0, "r1", 100, 0.0, [1, 2]),))
    rig.outbox.routed("r1", 50, [], 1.0001)
    rig.outbox.done(0, 1.0002)
    rig.outbox.routed("r2", 60, [3], 1.0004)
    due = rig.outbox.next_due(1.0004)
    assert due == pytest.approx(1.0 + PERIOD_S)
    assert rig.outbox.take(1.0005) is None
    told = rig.outbox.take(due)
    assert told is not None
    assert [(i.number, i.replica, i.tokens, i.hashes) for i in told.routed] == [(1, "r1", 50, []), (2, "r2", 60, [3])]
    assert told.routed[0].age_s == pytest.approx(0.0019)
    assert [(d.number, d.replica) for d in told.done] == [(0, "r1")]
    assert told.done[0].age_s == pytest.approx(0.0018)
    assert rig.outbox.take(1.9) is None


def test_an_end_waits_a_little_for_something_to_go_with() -> None:
    rig = Rig()
    first, second = rig.outbox.routed("r", 10, [], 1.0), rig.outbox.routed("r", 10, [], 1.0)
    rig.outbox.take(1.0)
    rig.outbox.done(first, 1.1)
    assert rig.outbox.next_due(1.1) == 1.1 + DONE_WAIT_S
    assert rig.outbox.take(1.105) is None
    rig.outbox.routed("r", 20, [], 1.106)
    told = rig.outbox.take(1.106)
    assert told is not None
    assert (len(told.routed), [done.number for done in told.done]) == (1, [first])
    rig.outbox.done(second, 1.2)
    told = rig.outbox.take(1.2 + DONE_WAIT_S)
    assert told is not None
    assert (told.routed, [done.number for done in told.done]) == ((), [second])


def test_what_is_over_before_it_was_told_is_not_told() -> None:
    rig = Rig()
    rig.outbox.done(rig.outbox.routed("r", 10, [1], 1.0), 1.0)
    assert rig.outbox.take(1.0) is None
    rig.outbox.done(12345, 1.0)
    assert rig.outbox.take(1.0) is None


def test_what_could_not_be_sent_in_time_is_dropped_and_so_is_its_end() -> None:
    rig = Rig()
    old, late = rig.outbox.routed("r", 10, [1], 1.0), rig.outbox.routed("r", 20, [1], 1.2)
    told = rig.outbox.take(1.1 + STALE_S)
    assert told is not None
    assert [intent.number for intent in told.routed] == [late]
    assert rig.dropped == {"stale": 1}
    rig.outbox.done(old, 3.0)
    assert rig.outbox.take(3.0) == Intents("g0")
    rig.outbox.done(late, 3.0)
    assert rig.outbox.take(3.1 + STALE_S) is None


def test_the_queue_is_bounded() -> None:
    rig = Rig()
    for _ in range(PENDING_MAX + 5):
        rig.outbox.routed("r", 1, [], 1.0)
    assert rig.dropped == {"full": 5}


def test_entries_are_bounded_and_what_is_left_comes_next() -> None:
    rig = Rig()
    many, long = ENTRY_MAX_INTENTS + 10, list(range(3 * NEW_BLOCKS_MAX))
    for _ in range(many):
        rig.outbox.routed("r", 1, long, 1.0)
    first, second = rig.outbox.take(1.0), rig.outbox.take(1.0 + PERIOD_S)
    assert first is not None
    assert second is not None
    assert [len(first.routed), len(second.routed)] == [ENTRY_MAX_INTENTS, 10]
    assert first.routed[0].hashes == long[:NEW_BLOCKS_MAX]
    assert sum(len(intent.hashes) for intent in first.routed) == ENTRY_MAX_HASHES
    assert Intents.decode({k.encode(): v if isinstance(v, bytes) else v.encode() for k, v in first.encode().items()})


@pytest.mark.parametrize("peers", [1, 3, 31])
def test_all_gateways_together_write_so_many_entries_a_second(peers: int) -> None:
    rig = Rig(peers)
    now, entries = 1.0, 0
    while now < 3.0:
        rig.outbox.routed("r", 1, [], now)
        entries += rig.outbox.take(now) is not None
        now += 0.0005
    assert entries / 2 * (1 + peers) <= FLEET_ENTRIES_PER_S * 1.05
    assert entries >= 2 * min(1 / PERIOD_S, FLEET_ENTRIES_PER_S / (1 + peers)) / 1.5
