from random import Random

import pytest

from gateway.backlog import INTENT_TTL_S
from gateway.fleet import NOMINAL, Beat, Fleet, Lease
from gateway.health import BACK_OFF_S, FAILURES_IN_A_ROW
from gateway.index.prefix_index import Match
from gateway.routing.candidates import size_class
from gateway.trust import Prediction
from replica.protocol.records import CostModel, Load, ReplicaState
from tests.gateway.fakes import IDENTITY, heartbeat


def fleet_of(*names: str, now: float = 0.0) -> Fleet:
    fleet = Fleet(IDENTITY)
    fleet.update({name: Beat(heartbeat(name)) for name in names}, now)
    return fleet


def column(fleet: Fleet, name: str, replica: str = "a", now: float = 0.0) -> float:
    """What a policy sees."""
    candidates = fleet.candidates(fleet.open(now), {}, now)
    return float(getattr(candidates, name)[candidates.ids.index(replica)])


def queue(fleet: Fleet, replica: str = "a", now: float = 0.0) -> float:
    return column(fleet, "queue_tokens", replica, now)


@pytest.mark.parametrize("seed", range(5))
def test_a_queue_is_the_same_however_often_it_is_looked_at(seed: int) -> None:
    print("seed", seed)
    rng, seen, unseen = Random(seed), fleet_of("a"), fleet_of("a")
    leases, now = list[tuple[Lease, Lease]](), 0.0
    for _ in range(200):
        now += rng.choice((0.0, 0.001, 0.05))
        done = rng.choice(leases) if leases and rng.random() < 0.5 else None
        if done is None:
            tokens, choices = rng.randrange(1, 4096), rng.choice((1, 1, 8))
            leases.append((seen.lease("a", tokens, [], now, choices), unseen.lease("a", tokens, [], now, choices)))
        elif rng.random() < 0.5:
            for lease in done:
                lease.first_token(now)
        else:
            leases.remove(done)
            for lease in done:
                lease.release(now)
        queue(seen, now=now)
        if rng.random() < 0.1:
            beat = Beat(heartbeat("a", load=Load(decoding=rng.randrange(4), pending_tokens=rng.randrange(9999))))
            seen.update({"a": beat}, now)
            unseen.update({"a": beat}, now)
        # Doesn't look at the table.
        assert seen.statuses(now) == unseen.statuses(now)
    assert queue(seen, now=now) == queue(unseen, now=now)
    assert column(seen, "stay_s", now=now) == column(unseen, "stay_s", now=now)


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
    assert column(fleet, "decoding", now=1) == 1
    lease.release(2)
    lease.release(2)
    assert column(fleet, "decoding", now=2) == 0
    assert fleet.statuses(2)["a"].leases == 0


def test_a_lease_of_several_choices_is_one_lease_and_as_many_decodes() -> None:
    fleet = fleet_of("a")
    leases = [fleet.lease("a", 800, [], 0, choices=count) for count in (4, 1)]
    for lease in leases:
        lease.first_token(1)
    assert (column(fleet, "decoding", now=1), fleet.statuses(1)["a"].leases) == (5, 2)
    leases[0].release(2)
    leases[0].release(2)
    assert (column(fleet, "decoding", now=2), fleet.statuses(2)["a"].leases) == (1, 1)


def test_leases_survive_heartbeats_and_absence() -> None:
    fleet = fleet_of("a")
    lease = fleet.lease("a", 800, [], 0)
    fleet.update({}, 100)
    fleet.update({"a": Beat(heartbeat("a", epoch="e2"))}, 200)
    assert (fleet.statuses(200)["a"].own_tokens, column(fleet, "waiting", now=200)) == (800, 1)
    lease.release(201)
    assert (fleet.statuses(201)["a"].own_tokens, column(fleet, "waiting", now=201)) == (0, 0)


def test_the_queue_is_own_tokens_plus_what_others_put_there() -> None:
    fleet = fleet_of("a")
    fleet.lease("a", 800, [], 0.1)
    fleet.update({"a": Beat(heartbeat("a", load=Load(pending_tokens=1000)))}, 0.5)
    assert queue(fleet, now=0.5) == 1000
    fleet.lease("a", 50, [], 0.5)
    assert queue(fleet, now=0.5) == 1050


def test_between_reports_a_queue_sinks_as_fast_as_the_replica_prefills() -> None:
    fleet = Fleet(IDENTITY)
    cost = CostModel(c0=0.1, c_lin=0.001, c_att=0.0, c_dec=0.01, max_step_tokens=100)
    fleet.update({"a": Beat(heartbeat("a", cost=cost, load=Load(pending_tokens=900)))}, 1.0)
    assert queue(fleet, now=1.5) == pytest.approx(900 - 0.5 * 100 / 0.2)
    fleet.update({"a": Beat(heartbeat("a", cost=cost, load=Load(pending_tokens=900, decoding=20)))}, 2.0)
    # With decodes it waits for half of their step besides.
    assert queue(fleet, now=2.5) == pytest.approx(900 - 0.5 * 100 / 0.55)
    assert fleet.statuses(2.5)["a"].queue_tokens == 809
    assert queue(fleet, now=99.0) == 0


def test_a_load_that_was_read_before_the_heartbeat_has_sunk_meanwhile() -> None:
    fleet = Fleet(IDENTITY)
    cost = CostModel(c0=0.1, c_lin=0.001, c_att=0.0, c_dec=0.0, max_step_tokens=100)
    fleet.update({"a": Beat(heartbeat("a", cost=cost, load=Load(pending_tokens=900), load_age_s=0.2), 0.1)}, 1.0)
    assert queue(fleet, now=1.0) == pytest.approx(900 - 0.3 * 500)


def test_what_waits_is_known_by_size() -> None:
    fleet = fleet_of("a")
    fleet.lease("a", 10, [], 0)
    fleet.intend("a", ("g2", 1), 3000, 0)
    candidates = fleet.candidates(fleet.open(0.0), {}, 0.0)
    assert candidates.size_counts[:, 0].nonzero()[0].tolist() == [size_class(10), size_class(3000)]
    assert candidates.size_tokens[:, 0].sum() == 3010


def test_order_and_places_of_a_heartbeat_reach_the_policy() -> None:
    fleet = Fleet(IDENTITY)
    beats = {"a": Beat(heartbeat("a", order="fcfs", max_running=7)), "b": Beat(heartbeat("b", order="shortest"))}
    fleet.update(beats, 0.0)
    assert [column(fleet, "shortest_first", replica) for replica in "ab"] == [0, 1]
    assert [column(fleet, "max_running", replica) for replica in "ab"] == [7, 0]


def test_own_work_in_a_late_report_is_not_taken_for_another_gateway_s() -> None:
    fleet = fleet_of("a")
    lease = fleet.lease("a", 800, [], 0.1)
    lease.first_token(0.6)
    fleet.update({"a": Beat(heartbeat("a", load=Load(pending_tokens=800)), age_s=0.2)}, 0.7)
    assert queue(fleet, now=0.7) == 0


def test_a_report_from_before_a_lease_does_not_know_of_it() -> None:
    fleet = fleet_of("a")
    fleet.lease("a", 800, [], 0.7)
    fleet.update({"a": Beat(heartbeat("a", load=Load(pending_tokens=1)), age_s=0.2)}, 0.7)
    assert queue(fleet, now=0.7) == 800


def test_a_tripped_replica_needs_a_newer_heartbeat_and_the_end_of_its_back_off() -> None:
    fleet = fleet_of("a", "b", now=10)
    fleet.trip("a", 11)
    late = {"a": Beat(heartbeat("a"), age_s=1.0), "b": Beat(heartbeat("b"))}
    fleet.update(late, 11.0 + 2 * BACK_OFF_S)
    assert fleet.statuses(11.0 + 2 * BACK_OFF_S)["a"].state == "ejected"
    fresh = {name: Beat(heartbeat(name)) for name in "ab"}
    fleet.update(fresh, 12)
    assert fleet.routable(12) == ("a", "b")
    fleet.trip("a", 13)
    fleet.update(fresh, 13 + BACK_OFF_S)
    assert fleet.routable(13 + BACK_OFF_S) == ("b",)
    assert fleet.routable(13 + 2 * BACK_OFF_S) == ("a", "b")


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
        fleet.observe(("a", "e1"), 1000, Prediction(992, 800, 800), 0, 0.0)
    assert column(fleet, "trust") < 0.05
    assert fleet.statuses(0)["a"].trust < 0.05
    for _ in range(20):
        fleet.observe(("a", "e1"), 1000, Prediction(992, 800, 800), 800, 0.0)
    assert column(fleet, "trust") == pytest.approx(1.0, abs=0.05)


def test_a_digest_that_is_behind_is_made_up_for() -> None:
    fleet = fleet_of("a")
    for _ in range(20):
        fleet.observe(("a", "e1"), 1000, Prediction(992, 0, 0), 800, 0.0)
    assert column(fleet, "unpromised") == pytest.approx(800 / 992, abs=0.05)
    fleet.update({"a": Beat(heartbeat("a", beats=1))}, 6000.0)
    assert column(fleet, "unpromised", now=6000.0) == 0.0


def test_a_replica_that_differs_is_given_no_credit_by_experience() -> None:
    fleet = Fleet(IDENTITY)
    fleet.update({"a": Beat(heartbeat("a", block_size=32))}, 0)
    for _ in range(20):
        fleet.observe(("a", "e1"), 1000, Prediction(992, 0, 0), 800, 0.0)
    assert column(fleet, "unpromised") == 0.0
    assert column(fleet, "reuse") > 0.7


def test_kv_of_a_cache_that_nobody_has_used_is_taken_for_reused() -> None:
    fleet = fleet_of("a")
    assert column(fleet, "reuse") == 1.0
    for _ in range(20):
        fleet.observe(("a", "e1"), 1000, Prediction(992, 0, 0), 0, 0.0)
    assert column(fleet, "reuse") < 0.05
    fleet.update({"a": Beat(heartbeat("a", epoch="e2", beats=1))}, 1.0)
    assert column(fleet, "reuse", now=1.0) == 1.0


def test_a_new_epoch_starts_with_full_trust() -> None:
    fleet = fleet_of("a")
    fleet.observe(("a", "e1"), 1000, Prediction(992, 800, 800), 0, 0.0)
    assert column(fleet, "trust") < 1.0
    fleet.update({"a": Beat(heartbeat("a", epoch="e2"))}, 1)
    assert column(fleet, "trust", now=1) == 1.0
    fleet.observe(("a", "e1"), 1000, Prediction(992, 800, 800), 0, 1.0)
    assert column(fleet, "trust", now=1) == 1.0


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


def test_what_is_chosen_from_is_what_is_routable() -> None:
    fleet = Fleet(IDENTITY)
    beats = {f"r{number}": Beat(heartbeat(f"r{number}", max_context=1000 + number)) for number in range(40)}
    fleet.update(beats, 0.0)
    fleet.trip("r3", 1.0)
    beats.pop("r5")
    beats["r7"] = Beat(heartbeat("r7", state=ReplicaState.DRAINING))
    fleet.update(beats, 1.0 + 2 * BACK_OFF_S)
    fleet.trip("r9", 2.0)

    def chosen_from(now: float, tokens: int = 0, tried: frozenset[tuple[str, str]] = frozenset()) -> set[str]:
        return set(fleet.candidates(fleet.open(now, tokens, tried), {}, now).ids)

    assert chosen_from(2.0) == set(fleet.routable(2.0)) == set(beats) - {"r7", "r9"}
    assert chosen_from(2.0, tokens=1030) == {f"r{number}" for number in range(30, 40)}
    assert "r4" not in chosen_from(2.0, tried=frozenset({("r4", "e1")}))
    assert "r4" in chosen_from(2.0, tried=frozenset({("r4", "another epoch"), ("unknown", "e1")}))


def test_rows_follow_their_replicas_when_others_are_forgotten() -> None:
    fleet = fleet_of("a", "b", "c")
    fleet.lease("c", 700, [], 0)
    beats = {name: Beat(heartbeat(name)) for name in "bc"}
    fleet.update(beats, 1000.0)
    assert set(fleet.statuses(1000.0)) == {"b", "c"}
    assert [column(fleet, "waiting", replica, 1000.0) for replica in "bc"] == [0, 1]
    assert fleet.candidates(fleet.open(1000.0), {}, 1000.0).size_tokens.sum(axis=0).tolist() in ([0, 700], [700, 0])
    matched = fleet.candidates(fleet.open(1000.0), {"c": Match(3, 5), "gone": Match(9, 9)}, 1000.0)
    assert dict(zip(matched.ids, matched.matched_blocks, strict=True)) == {"b": 0, "c": 5}
    assert dict(zip(matched.ids, matched.held_blocks, strict=True)) == {"b": 0, "c": 3}


def test_a_replica_that_has_fitted_nothing_yet_counts_by_tokens() -> None:
    fleet = Fleet(IDENTITY)
    fleet.update({"a": Beat(heartbeat("a", cost=CostModel(0, 0, 0, 0, 512)))}, 0)
    assert column(fleet, "c_lin") == NOMINAL.c_lin


def test_what_another_gateway_has_sent_counts_until_it_is_done() -> None:
    fleet = fleet_of("a")
    fleet.lease("a", 100, [], 0.2)
    assert fleet.intend("a", ("g2", 1), 800, 0.2)
    assert (queue(fleet, now=0.2), column(fleet, "waiting", now=0.2)) == (900, 2)
    status = fleet.statuses(0.2)["a"]
    assert (status.queue_tokens, status.own_tokens) == (900, 100)
    fleet.settle("a", ("g2", 1))
    assert (queue(fleet, now=0.2), column(fleet, "waiting", now=0.2)) == (100, 1)
    assert not fleet.intend("nobody", ("g2", 2), 800, 0.2)
    fleet.settle("nobody", ("g2", 2))


def test_a_heartbeat_takes_over_what_was_sent_before_it() -> None:
    fleet = fleet_of("a")
    fleet.lease("a", 100, [], 0.1)
    fleet.intend("a", ("g2", 1), 800, 0.2)
    fleet.intend("a", ("g2", 2), 50, 0.5)
    fleet.update({"a": Beat(heartbeat("a", load=Load(pending_tokens=700)))}, 0.5)
    assert queue(fleet, now=0.5) == 750


def test_a_gateway_that_dies_leaves_nothing_counted() -> None:
    fleet = fleet_of("a")
    fleet.intend("a", ("g2", 1), 800, 0.2)
    fleet.update({}, 0.3 + INTENT_TTL_S, kept={"a"})
    assert queue(fleet, now=0.3 + INTENT_TTL_S) == 0
    fleet.intend("a", ("g2", 2), 800, 3.0)
    fleet.freeze()
    assert queue(fleet, now=3.0) == 0


def test_no_prompt_is_longer_than_the_replica_takes() -> None:
    fleet = fleet_of("a")
    fleet.intend("a", ("g2", 1), 1 << 24, 0.2)
    assert queue(fleet) == 4096


def test_until_an_answer_has_ended_those_under_way_stay_as_long_again_as_they_have_been_there() -> None:
    fleet = Fleet(IDENTITY)
    fleet.update({"a": Beat(heartbeat("a"))}, 0.0)
    leases = [fleet.lease("a", 100, (), 0.0) for _ in range(2)]
    for lease, at in zip(leases, (1.0, 3.0), strict=True):
        lease.first_token(at)
    fleet.update({"a": Beat(heartbeat("a"))}, 4.0)
    assert fleet.candidates(fleet.open(4.0), {}, 4.0).stay_s.tolist() == [4.0]
    leases[0].release(6.0)
    assert fleet.candidates(fleet.open(6.0), {}, 6.0).stay_s.tolist() == [5.0]
