import logging
from collections import Counter

import pytest
from redis.exceptions import ResponseError

from gateway.intents.listener import LAG_S, Listener
from replica.protocol.intents import Intents
from replica.protocol.shape import RecordError

WRONG_TYPE = ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")


class Rig:
    def __init__(self) -> None:
        self.heard: list[tuple[str, float]] = []
        self.bad: Counter[str] = Counter()
        self.listener = Listener(Intents.decode, lambda i, now: self.heard.append((i.gateway, now)), self._count)

    def _count(self, reason: str) -> None:
        self.bad[reason] += 1

    def take(self, at: int, gateway: str, now: float) -> None:
        fields = Intents(gateway).encode()
        self.listener.take(
            ((at, 0), {k.encode(): v if isinstance(v, bytes) else v.encode() for k, v in fields.items()}), now
        )


def test_it_begins_where_the_stream_ends_and_hears_what_comes_after() -> None:
    rig = Rig()
    rig.listener.look((7, 1), 1.0)
    assert rig.listener.after == (7, 1)
    rig.take(8, "g1", 1.1)
    rig.listener.look((9, 0), 1.2)
    assert rig.listener.after == (8, 0)
    assert rig.heard == [("g1", 1.1)]
    rig.listener.connected()
    rig.listener.look((9, 0), 2.0)
    assert rig.listener.after == (9, 0)


def test_nothing_is_read_before_the_end_is_known() -> None:
    rig = Rig()
    assert rig.listener.after is None


def test_a_stream_with_lower_ids_is_another_one() -> None:
    rig = Rig()
    rig.listener.look((7, 1), 1.0)
    rig.listener.look((0, 0), 1.2)
    assert rig.listener.after == (0, 0)


def test_what_may_have_waited_long_is_left_out() -> None:
    rig = Rig()
    rig.listener.look((0, 0), 1.0)
    rig.take(1, "g1", 0.9 + LAG_S)
    rig.take(2, "g2", 1.0 + LAG_S)
    rig.listener.drained(3.0)
    rig.take(3, "g3", 3.1)
    assert [gateway for gateway, _ in rig.heard] == ["g1", "g3"]
    assert rig.listener.after == (3, 0)


def test_a_stream_that_cannot_be_read_is_said_once_and_read_when_it_can(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    for now in (1.0, 1.25, 1.5):
        rig.listener.look(WRONG_TYPE, now)
        assert rig.listener.after is None
    rig.listener.look((5, 0), 2.0)
    assert rig.listener.after == (5, 0)
    [line] = caplog.records
    assert line.levelno == logging.WARNING
    assert "can't hear where other gateways send requests: a key of ours holds something else" in line.getMessage()


def test_a_bad_record_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.listener.look((0, 0), 1.0)
    for at in range(1, 4):
        rig.listener.take(((at, 0), {b"kind": b"delta"}), 1.0)
    rig.take(5, "g1", 1.0)
    assert rig.bad == {RecordError("").reason: 3}
    assert [gateway for gateway, _ in rig.heard] == ["g1"]
    assert len(caplog.records) == 1
