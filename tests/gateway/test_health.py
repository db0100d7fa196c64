"""Which replicas are kept out, for how long, and how they come back. Cases C15, C17 and C18."""

import pytest

from gateway.fleet import Beat, Fleet
from gateway.fleet_table import SLOW_START_SHARE
from gateway.health import (
    BACK_OFF_FORGIVEN_S,
    BACK_OFF_MAX_S,
    BACK_OFF_S,
    BEATS_TO_RETURN,
    FAILURES_IN_A_ROW,
    SLOW_START_S,
    STALLED_S,
    Health,
)
from replica.protocol.records import Heartbeat, RecordError, ReplicaState
from tests.gateway.fakes import IDENTITY, heartbeat

SETTLED = SLOW_START_S + 1.0


class Rig:
    """A fleet that beats when told to."""

    def __init__(self, *names: str) -> None:
        self.fleet = Fleet(IDENTITY)
        self.beats = {name: heartbeat(name) for name in names}
        self.count = 0
        self.beat(0.0)

    def beat(self, now: float, **changes: float) -> None:
        """`changes`: seconds that a replica says it has stood still."""
        self.count += 1
        for name in self.beats:
            self.beats[name] = heartbeat(name, beats=self.count, stalled_s=changes.get(name, 0.0))
        self.fleet.update({name: Beat(beat) for name, beat in self.beats.items()}, now)

    def open(self, now: float) -> set[str]:
        return set(self.fleet.candidates(self.fleet.open(now), {}, now).ids)


def test_c17_an_error_of_the_client_neither_opens_a_breaker_nor_mends_one() -> None:
    """A 4xx is told to neither `failed` nor `succeeded`: the streak stands."""
    health = Health()
    for _ in range(FAILURES_IN_A_ROW - 1):
        assert not health.failed()
    assert health.failed()
    health.succeeded()
    assert not health.failed()


def test_c18_the_back_off_grows_with_each_time_and_a_success_does_not_end_that() -> None:
    health = Health()
    now, waits = 0.0, []
    for _ in range(10):
        health.trip(now)
        waits.append(health.closed_until - now)
        now = health.closed_until
        health.succeeded()
    assert waits[:4] == [BACK_OFF_S, 2 * BACK_OFF_S, 4 * BACK_OFF_S, 8 * BACK_OFF_S]
    assert waits[-1] == BACK_OFF_MAX_S


def test_c18_time_without_failures_takes_the_back_off_back() -> None:
    health = Health()
    for _ in range(3):
        health.trip(health.closed_until if health.closed_until > 0 else 0.0)
    assert health.back_offs == 3
    health.trip(health.closed_until + 2 * BACK_OFF_FORGIVEN_S)
    assert health.back_offs == 2
    health.trip(health.closed_until + 1000 * BACK_OFF_FORGIVEN_S)
    assert health.back_offs == 1


def test_c18_breakers_never_keep_out_most_of_a_fleet() -> None:
    rig = Rig("a", "b", "c", "d")
    for name in "ab":
        rig.fleet.trip(name, 20.0)
        rig.fleet.trip(name, 21.0)
    rig.beat(21.1)
    assert rig.open(21.1) == {"c", "d"}, "half of them may be out"
    rig.fleet.trip("c", 21.2)
    assert rig.open(21.2) == {"a", "b", "d"}, "one that hasn't been heard of since is no guess"
    rig.beat(21.3)
    assert rig.open(21.3) == {"a", "b", "c", "d"}
    assert rig.fleet.statuses(21.3)["a"].state == "ejected"


def test_c18_a_fleet_of_one_is_not_kept_out_while_it_beats() -> None:
    rig = Rig("a")
    for _ in range(8):
        rig.fleet.trip("a", 20.0)
    rig.beat(20.1)
    assert rig.open(20.1) == {"a"}


def test_a_stuck_engine_is_out_and_back_only_when_it_moves_for_good() -> None:
    rig = Rig("a", "b")
    rig.beat(20.0, a=STALLED_S)
    assert rig.open(20.0) == {"a", "b"}, "one slow step puts nobody out"
    rig.beat(20.5, a=STALLED_S + 0.5)
    assert rig.open(20.5) == {"b"}
    assert rig.fleet.statuses(20.5)["a"].state == "stuck"
    for count in range(BEATS_TO_RETURN - 1):
        rig.beat(21.0 + count)
        assert rig.open(21.0 + count) == {"b"}
    rig.beat(22.0, a=0.3)
    rig.beat(23.0)
    assert rig.open(23.0) == {"b"}, "it stood still in between"
    for count in range(BEATS_TO_RETURN):
        rig.beat(24.0 + count)
    assert rig.open(25.0) == {"a", "b"}


def test_stuck_replicas_stay_out_also_where_they_are_the_most() -> None:
    rig = Rig("a", "b", "c")
    rig.beat(20.0, a=9.0, b=9.0)
    assert rig.open(20.0) == {"c"}


@pytest.mark.parametrize("coming", ["new", "back", "drained", "stuck", "tripped"])
def test_c15_a_replica_that_comes_takes_no_more_than_its_share(coming: str) -> None:
    rig = Rig("a", "b") if coming == "new" else Rig("a", "b", "new")
    now = SETTLED
    rig.beat(now)
    leases = [rig.fleet.lease(name, 100, [], now) for name in "ab" for _ in range(4)]
    if coming in ("new", "back"):
        rig.beats.pop("new", None)
        rig.beat(now)
        rig.beats["new"] = heartbeat("new")
    elif coming == "drained":
        beats = {
            name: Beat(heartbeat(name, state=ReplicaState.DRAINING if name == "new" else ReplicaState.READY))
            for name in rig.beats
        }
        rig.fleet.update(beats, now + 0.2)
    elif coming == "stuck":
        rig.beat(now, new=9.0)
    else:
        rig.fleet.trip("new", now)
    assert rig.open(now + 0.2) == {"a", "b"}
    for _ in range(BEATS_TO_RETURN):
        now += 0.5
        rig.beat(now)
    taken = 0
    while "new" in rig.open(now):
        leases.append(rig.fleet.lease("new", 100, [], now))
        taken += 1
        assert taken <= SLOW_START_SHARE * 4
    assert taken == SLOW_START_SHARE * 4
    assert set(rig.fleet.routable(now)) == {"a", "b", "new"}
    leases[-1].release(now)
    assert "new" in rig.open(now)
    leases.append(rig.fleet.lease("new", 100, [], now))
    rig.beat(now + SETTLED)
    assert rig.open(now + SETTLED) == {"a", "b", "new"}


def test_c15_where_nothing_is_in_flight_a_new_one_takes_one() -> None:
    rig = Rig("a")
    rig.beat(SETTLED)
    rig.beats["new"] = heartbeat("new")
    rig.beat(SETTLED)
    assert rig.open(SETTLED) == {"a", "new"}
    rig.fleet.lease("new", 100, [], SETTLED)
    assert rig.open(SETTLED) == {"a"}


def test_c15_a_fleet_that_starts_one_by_one_is_not_held_back() -> None:
    rig = Rig("a")
    rig.beats["b"] = heartbeat("b")
    rig.beat(5.0)
    for now in (5.0, SETTLED, 14.0):
        rig.beat(now)
        for _ in range(50):
            rig.fleet.lease("b", 100, [], now)
        assert rig.open(now) == {"a", "b"}


def test_c15_nor_is_one_that_comes_back_as_a_whole() -> None:
    rig = Rig("a", "b")
    rig.beat(20.0)
    rig.fleet.update({}, 30.0)
    for _ in range(50):
        rig.fleet.lease("b", 100, [], 31.0)
    for now in (31.0, 32.0, 41.5, 45.0):
        rig.beat(now)
        assert rig.open(now) == {"a", "b"}


def test_c15_a_fleet_that_starts_as_a_whole_is_not_held_back() -> None:
    rig = Rig("a", "b")
    for _ in range(50):
        rig.fleet.lease("a", 100, [], 0.0)
    assert rig.open(0.0) == {"a", "b"}


def test_a_heartbeat_of_an_older_version_says_nothing_of_either() -> None:
    beat = Heartbeat.decode(heartbeat("a", stalled_s=2.5, resumes=True).encode())
    assert (beat.stalled_s, beat.resumes) == (2.5, True)
    old = heartbeat("a").encode().replace(b'"stalled_s":0.0,', b"").replace(b'"resumes":false', b'"other":1')
    assert (Heartbeat.decode(old).stalled_s, Heartbeat.decode(old).resumes) == (0.0, False)
    with pytest.raises(RecordError, match="stalled_s"):
        Heartbeat.decode(heartbeat("a").encode().replace(b'"stalled_s":0.0', b'"stalled_s":-1'))
