"""The rules by which a digest is believed, one by one. That they suffice: tests/simulation."""

from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from typing import TypeVar

import pytest

from gateway.index.follower import FORGET_S, RETRY_S, Follower
from gateway.index.plain_index import PlainIndex
from gateway.index.prefix_index import Applied
from replica.protocol.records import Delta, Heartbeat, Snapshot
from tests.gateway.fakes import heartbeat

HELD = (11, 12)

_T = TypeVar("_T")


class Rig:
    def __init__(self) -> None:
        self.index = PlainIndex()
        self.reasons: Counter[str] = Counter()
        self.follower = Follower(self.index, self._resync)
        self.beats = 0

    def _resync(self, reason: str) -> None:
        self.reasons[reason] += 1

    def beat(self, epoch: str, seq: int = 0) -> Heartbeat:
        self.beats += 1
        return replace(heartbeat("a"), epoch=epoch, seq=seq, beats=self.beats)

    def hear(self, beat: Heartbeat, now: float = 0.0) -> None:
        self.follower.heard({"a": beat}, now)

    def load(self, epoch: str, seq: int) -> bool:
        run(self.follower.load("a", Snapshot(epoch, seq, "0-0", HELD)))
        return self.follower.repaired("a")


def run(steps: Generator[None, None, _T]) -> _T:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: _T = stop.value
            return result


@pytest.fixture
def rig() -> Rig:
    """A replica of epoch e1 that is followed at seq 3."""
    rig = Rig()
    rig.hear(rig.beat("e1", 3))
    assert rig.follower.due(0.0) == ["a"]
    assert rig.load("e1", 3)
    return rig


def delta(epoch: str, seq: int, added: tuple[int, ...] = ()) -> Delta:
    held = {*HELD, *added} if seq > 1 else set(added)
    root = 0
    for block in held:
        root ^= block
    return Delta("a", epoch, seq, added, (), len(held), root)


def test_a_delta_in_order_is_taken(rig: Rig) -> None:
    assert run(rig.follower.take(delta("e1", 4, (13,)), 0.0)) is Applied.OK
    assert rig.index.position("a") == ("e1", 4)


def test_a_delta_of_another_epoch_takes_credit_and_gives_none(rig: Rig) -> None:
    assert run(rig.follower.take(delta("e2", 1, (13,)), 0.0)) is None
    assert rig.index.position("a") is None
    rig.hear(rig.beat("e1", 3))
    assert rig.follower.epoch("a") == ""


def test_another_epoch_is_believed_when_its_heartbeat_has_changed(rig: Rig) -> None:
    first = rig.beat("e2", 1)
    rig.hear(first)
    assert rig.index.position("a") is None
    rig.hear(first)
    assert rig.follower.epoch("a") == ""
    rig.hear(rig.beat("e2", 1))
    assert rig.follower.epoch("a") == "e2"
    assert rig.load("e2", 1)


def test_deltas_of_the_epoch_that_is_waited_for_change_nothing(rig: Rig) -> None:
    rig.hear(rig.beat("e2", 1))
    run(rig.follower.take(delta("e2", 2), 0.0))
    rig.hear(rig.beat("e2", 2))
    assert rig.follower.epoch("a") == "e2"


def test_deltas_of_a_third_epoch_make_it_wait_anew(rig: Rig) -> None:
    rig.hear(rig.beat("e2", 1))
    run(rig.follower.take(delta("e3", 1), 0.0))
    rig.hear(rig.beat("e2", 1))
    assert rig.follower.epoch("a") == ""


def test_two_heartbeats_over_two_connections_prove_nothing(rig: Rig) -> None:
    rig.hear(rig.beat("e0"))
    rig.follower.connected()
    rig.hear(rig.beat("e0"))
    assert rig.follower.epoch("a") == ""


def test_what_is_known_to_be_over_is_passed_by(rig: Rig) -> None:
    rig.hear(rig.beat("e2"))
    rig.hear(rig.beat("e2"))
    assert rig.load("e2", 0)
    rig.follower.connected()
    rig.hear(rig.beat("e1", 9))
    run(rig.follower.take(delta("e1", 1, (13,)), 0.0))
    assert rig.index.position("a") == ("e2", 0)


def test_an_epoch_that_deltas_alone_have_named_outweighs_an_old_heartbeat() -> None:
    rig = Rig()
    run(rig.follower.take(delta("e2", 5), 0.0))
    rig.hear(rig.beat("e1", 3))
    assert rig.follower.epoch("a") == ""
    rig.hear(rig.beat("e2", 5))
    assert rig.follower.epoch("a") == "e2"
    assert rig.reasons == {"join": 1}


def test_a_delta_of_one_that_is_gone_may_be_of_a_new_epoch(rig: Rig) -> None:
    rig.follower.heard({}, 1.0)
    run(rig.follower.take(delta("e2", 1), 1.5))
    rig.hear(rig.beat("e1", 3), 2.0)
    assert rig.follower.epoch("a") == ""


def test_a_broken_promise_is_a_loss(rig: Rig) -> None:
    rig.hear(rig.beat("e1", 4))
    rig.follower.check_promises(0.0)
    assert rig.index.position("a") is None
    assert rig.reasons == {"join": 1, "gap": 1}


@pytest.mark.parametrize("reason", ["wiped", "trimmed"])
def test_a_loss_is_called_after_what_raised_the_doubt(rig: Rig, reason: str) -> None:
    rig.follower.doubt(reason)
    rig.follower.check_promises(0.0)
    rig.hear(rig.beat("e1", 4))
    rig.follower.check_promises(0.0)
    assert rig.reasons == {"join": 1, reason: 1}


def test_a_repair_that_falls_short_is_tried_again_with_another_snapshot(rig: Rig) -> None:
    rig.hear(rig.beat("e1", 5))
    rig.follower.check_promises(0.0)
    assert not rig.load("e1", 4)
    rig.follower.retry("a", b"head", 1.0)
    assert rig.index.position("a") is None
    assert rig.follower.tried("a") == b"head"
    assert rig.follower.due(1.0) == []
    assert rig.follower.due(1.0 + RETRY_S) == ["a"]
    assert rig.load("e1", 5)


def test_deltas_wait_for_the_repair_but_for_a_first_one_which_is_all(rig: Rig) -> None:
    rig.hear(rig.beat("e2"))
    rig.hear(rig.beat("e2"))
    assert run(rig.follower.take(delta("e2", 2), 0.0)) is None
    assert run(rig.follower.take(delta("e2", 1, (13,)), 0.0)) is Applied.OK
    assert rig.follower.due(9.0) == []


def test_one_that_is_gone_is_remembered_for_a_while(rig: Rig) -> None:
    rig.follower.heard({}, 1.0)
    assert rig.index.position("a") is None
    rig.hear(rig.beat("e0"), 2.0)
    assert rig.follower.epoch("a") == ""
    rig.follower.heard({}, 3.0)
    rig.follower.heard({}, 3.1 + FORGET_S)
    assert len(rig.follower) == 0
