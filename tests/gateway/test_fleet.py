import pytest

from gateway.fleet import BACK_OFF_S, FAILURES_IN_A_ROW, Beat, Fleet
from replica.protocol.records import Load, ReplicaState
from tests.gateway.fakes import IDENTITY, heartbeat


def fleet_of(*names: str, now: float = 0.0) -> Fleet:
    fleet = Fleet(IDENTITY)
    fleet.update({name: Beat(heartbeat(name)) for name in names}, now)
    return fleet


def queue(fleet: Fleet, replica: str = "a", now: float = 0.0) -> int:
    return next(view.queue_tokens for view in fleet.snapshot(now) if view.id == replica)


def test_a_replica_without_a_heartbeat_is_out_at_once() -> None:
    fleet = fleet_of("a", "b")
    fleet.update({"b": Beat(heartbeat("b"))}, 0.5)
    assert fleet.routable(0.5) == ("b",)


def test_replicas_whose_heartbeats_may_be_lost_are_kept() -> None:
    fleet = fleet_of("a", "b")
    fleet.update({}, 1.5, kept={"a"})
    assert fleet.routable(1.5) == ("a",)
    fleet.update({}, 2.5, kept={"a", "b"})
    assert fleet.routable(2.5) == ("a",)
    fleet.update({}, 3.5)
    assert fleet.routable(3.5) == ()


def test_an_unreachable_redis_keeps_all() -> None:
    fleet = fleet_of("a")
    fleet.freeze()
    assert fleet.routable(1000.0) == ("a",)


def test_draining_is_not_routable() -> None:
    fleet = Fleet(IDENTITY)
    fleet.update({"a": Beat(heartbeat("a", state=ReplicaState.DRAINING))}, 0)
    assert fleet.routable(0) == ()
    assert fleet.statuses(0)["a"].state == "draining"


def test_a_lease_queues_tokens_until_its_first_token_and_decodes_until_its_release() -> None:
    fleet = fleet_of("a")
    lease = fleet.lease("a", 800, [], 0)
    assert queue(fleet) == 800
    lease.first_token(1)
    assert queue(fleet) == 0
    assert fleet.snapshot(1)[0].decoding == 1
    lease.release(2)
    lease.release(2)
    assert fleet.snapshot(2)[0].decoding == 0
    assert fleet.statuses(2)["a"].leases == 0


def test_a_lease_of_several_choices_is_one_lease_and_as_many_decodes() -> None:
    fleet = fleet_of("a")
    leases = [fleet.lease("a", 800, [], 0, choices=count) for count in (4, 1)]
    for lease in leases:
        lease.first_token(1)
    assert (fleet.snapshot(1)[0].decoding, fleet.statuses(1)["a"].leases) == (5, 2)
    leases[0].release(2)
    leases[0].release(2)
    assert (fleet.snapshot(2)[0].decoding, fleet.statuses(2)["a"].leases) == (1, 1)


def test_leases_survive_heartbeats_and_absence() -> None:
    fleet = fleet_of("a")
    lease = fleet.lease("a", 800, [], 0)
    fleet.update({}, 100)
    fleet.update({"a": Beat(heartbeat("a", epoch="e2"))}, 200)
    assert queue(fleet, now=200) == 800
    lease.release(201)
    assert queue(fleet, now=201) == 0


def test_the_queue_is_own_tokens_plus_what_others_put_there() -> None:
    fleet = fleet_of("a")
    fleet.lease("a", 800, [], 0.1)
    fleet.update({"a": Beat(heartbeat("a", load=Load(pending_tokens=1000)))}, 0.5)
    assert queue(fleet, now=0.5) == 1000
    fleet.lease("a", 50, [], 0.6)
    assert queue(fleet, now=0.6) == 1050


def test_own_work_in_a_late_report_is_not_taken_for_another_gateway_s() -> None:
    fleet = fleet_of("a")
    lease = fleet.lease("a", 800, [], 0.1)
    lease.first_token(0.6)
    fleet.update({"a": Beat(heartbeat("a", load=Load(pending_tokens=800)), age_s=0.2)}, 0.7)
    assert queue(fleet, now=0.7) == 0


def test_a_report_from_before_a_lease_does_not_know_of_it() -> None:
    fleet = fleet_of("a")
    fleet.lease("a", 800, [], 0.6)
    fleet.update({"a": Beat(heartbeat("a", load=Load(pending_tokens=300)), age_s=0.2)}, 0.7)
    assert queue(fleet, now=0.7) == 1100


def test_a_tripped_replica_needs_a_newer_heartbeat_and_the_end_of_its_back_off() -> None:
    fleet = fleet_of("a", now=10)
    fleet.trip("a", 11)
    fleet.update({"a": Beat(heartbeat("a"), age_s=1.0)}, 11.0 + 2 * BACK_OFF_S)
    assert fleet.statuses(11.0 + 2 * BACK_OFF_S)["a"].state == "ejected"
    fleet.update({"a": Beat(heartbeat("a"))}, 12)
    assert fleet.routable(12) == ("a",)
    fleet.trip("a", 20)
    fleet.update({"a": Beat(heartbeat("a"))}, 20 + BACK_OFF_S)
    assert fleet.routable(20 + BACK_OFF_S) == ()
    assert fleet.routable(20 + 2 * BACK_OFF_S) == ("a",)


def test_an_identical_newer_heartbeat_is_enough_to_return() -> None:
    fleet = fleet_of("a")
    fleet.trip("a", 1)
    fleet.update({"a": Beat(heartbeat("a"))}, 1.5)
    assert fleet.routable(1.5) == ("a",)


def test_the_back_off_doubles_only_between_failures_that_come_apart() -> None:
    fleet = fleet_of("a")
    for _ in range(20):
        fleet.trip("a", 1.0)
    fleet.update({"a": Beat(heartbeat("a"))}, 1.0 + BACK_OFF_S)
    assert fleet.routable(1.0 + BACK_OFF_S) == ("a",)


def test_5xx_take_a_replica_out_only_in_a_row() -> None:
    fleet = fleet_of("a")
    for _ in range(FAILURES_IN_A_ROW - 1):
        fleet.failed("a", 1)
    fleet.succeeded("a")
    fleet.failed("a", 1)
    assert fleet.routable(1) == ("a",)
    for _ in range(FAILURES_IN_A_ROW):
        fleet.failed("a", 1)
    assert fleet.routable(1) == ()


def test_trust_follows_what_was_delivered_and_comes_back() -> None:
    fleet = fleet_of("a")
    for _ in range(20):
        fleet.observe("a", 1000, predicted=800, delivered=0)
    assert fleet.snapshot(0)[0].trust < 0.05
    for _ in range(20):
        fleet.observe("a", 1000, predicted=800, delivered=900)
    assert fleet.snapshot(0)[0].trust == pytest.approx(1.0, abs=0.05)
    fleet.observe("a", 1000, predicted=0, delivered=0)
    assert fleet.snapshot(0)[0].trust == pytest.approx(1.0, abs=0.05)


def test_a_new_epoch_starts_with_full_trust() -> None:
    fleet = fleet_of("a")
    fleet.observe("a", 1000, predicted=800, delivered=0)
    fleet.update({"a": Beat(heartbeat("a", epoch="e2"))}, 1)
    assert fleet.snapshot(1)[0].trust == 1.0


def test_a_replica_that_differs_is_routable_without_credit() -> None:
    fleet = Fleet(IDENTITY)
    fleet.update({"a": Beat(heartbeat("a", block_size=32))}, 0)
    assert fleet.routable(0) == ("a",)
    assert not fleet.statuses(0)["a"].compatible
    assert [difference.kind for difference in fleet.differences("a")] == ["block_size"]


def test_replicas_that_are_long_gone_are_forgotten() -> None:
    fleet = fleet_of("a")
    fleet.update({}, 1000)
    assert fleet.statuses(1000) == {}
