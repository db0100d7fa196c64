from dataclasses import replace

from gateway.fleet import Beat, Fleet
from gateway.index.factory import make_index
from gateway.router import Router
from gateway.routing.base import RouteRequest
from gateway.routing.ttft import Ttft
from replica.protocol.hashing import block_hashes
from replica.protocol.records import CostModel, Load, Snapshot
from tests.gateway.fakes import COST, IDENTITY, blocks, heartbeat
from tests.gateway.routing.views import View, candidates, view

REQUEST = RouteRequest(1025, blocks(1, 64))


def choose(*views: View) -> str:
    return Ttft().choose(REQUEST, candidates(*views), 0.0).choice


def test_a_cached_prefix_wins_on_idle_replicas() -> None:
    assert choose(view("a"), view("b", matched_blocks=50), view("c")) == "b"


def test_a_long_queue_outweighs_a_cached_prefix() -> None:
    assert choose(view("a"), view("b", matched_blocks=50, queue_tokens=5000)) == "a"


def test_a_replica_that_lies_about_its_cache_gets_no_credit() -> None:
    assert choose(view("a", matched_blocks=64, trust=0.0), view("b", matched_blocks=32)) == "b"


def test_a_batch_that_decodes_slows_a_prefill() -> None:
    assert choose(view("a", decoding=200), view("b")) == "b"


def test_a_full_cache_that_is_in_use_is_spared() -> None:
    assert choose(view("a", free_blocks=0, reuse=0.9), view("b", free_blocks=500, reuse=0.9)) == "b"


def test_a_slow_replica_gets_less() -> None:
    slow = CostModel(c0=0.05, c_lin=2e-3, c_att=1e-7, c_dec=1e-3, max_step_tokens=512)
    assert choose(view("a", cost=slow), view("b", queue_tokens=2000)) == "b"


def test_the_terms_add_up() -> None:
    views = candidates(view("a", queue_tokens=700, decoding=3, free_blocks=0), view("b"))
    decision = Ttft().choose(REQUEST, views, 0.0)
    for row in decision.rows().values():
        parts = [value for term, value in row.items() if term.endswith("_s")]
        assert abs(sum(parts) - row["cost"]) < 1e-12
        assert all(
            row[f"{term}_s"] >= 0 for term in ("queue", "place", "prefill", "delay", "compute", "kv", "eviction")
        )
    assert decision.rows()["a"]["eviction_s"] > 0


def test_a_lucky_fit_draws_no_crowd_but_a_quicker_replica_does() -> None:
    lucky = replace(COST, c_lin=COST.c_lin * 0.8)
    twice = replace(COST, c_lin=COST.c_lin / 2, c0=COST.c0 / 2, c_dec=COST.c_dec / 2)
    for cost, share in ((lucky, range(10, 50)), (twice, range(100, 101))):
        views = candidates(view("a", cost=cost), *map(view, "bcd"))
        requests = [RouteRequest(1025, blocks(number, 64)) for number in range(100)]
        assert [Ttft().choose(request, views, 0.0).choice for request in requests].count("a") in share


def travel_request(context: int, question: int) -> RouteRequest:
    """200 shared tokens, 800 of a context, 25 of a question."""
    tokens = list(range(200)) + [10_000 * (context + 1) + i for i in range(800)]
    tokens += [1_000_000 + 100 * question + i for i in range(25)]
    return RouteRequest(len(tokens), block_hashes(tokens, namespace=1))


def cold_fleet(replicas: int) -> tuple[Fleet, Router]:
    fleet, index = Fleet(IDENTITY), make_index()
    names = [f"r{number}" for number in range(replicas)]
    fleet.update({name: Beat(heartbeat(name)) for name in names}, 0.0)
    for name in names:
        index.load(name, Snapshot("e1", 0, "0-0", ()))
    return fleet, Router(fleet, index, Ttft())


def queues(fleet: Fleet) -> dict[str, int]:
    return {replica: status.queue_tokens for replica, status in fleet.statuses(0.0).items()}


def burst(order: list[tuple[int, int]], replicas: int = 4) -> tuple[dict[int, set[str]], dict[str, int]]:
    """Where each context went, and the uncached tokens of each replica."""
    fleet, router = cold_fleet(replicas)
    places: dict[int, set[str]] = {}
    for context, question in order:
        request = travel_request(context, question)
        decision = router.route(request, request.tokens, set(), 0.0)
        assert decision is not None
        router.take(request, decision, 0.0)
        places.setdefault(context, set()).add(decision.choice)
    return places, queues(fleet)


def test_a_burst_spreads_by_context_and_keeps_each_context_together() -> None:
    by_turns = [(number % 10, number) for number in range(50)]
    by_context = [(number // 5, number) for number in range(50)]
    for order in (by_turns, by_context):
        places, queued = burst(order)
        share = sum(queued.values()) / len(queued)
        assert max(queued.values()) <= 2 * share, queued
        assert min(queued.values()) > 0
        # As long as the fleet is idle any replica is as quick as waiting for the first.
        assert sum(len(replicas) for replicas in places.values()) <= len(places) + 3, places


def test_contexts_that_come_one_by_one_are_shared_out_evenly() -> None:
    """Each is computed before the next comes, so no queue tells the replicas apart; what they hold does."""
    fleet, router = cold_fleet(4)
    free = dict.fromkeys(fleet.routable(0.0), 1000)
    places: dict[str, int] = dict.fromkeys(free, 0)
    for context in range(12):
        now = float(context)
        beats = {name: heartbeat(name, load=Load(free_blocks=free[name], total_blocks=1000)) for name in free}
        fleet.update({name: Beat(beat) for name, beat in beats.items()}, now)
        request = travel_request(context, context)
        decision = router.route(request, request.tokens, set(), now)
        assert decision is not None
        lease = router.take(request, decision, now)
        lease.first_token(now)
        lease.release(now)
        free[decision.choice] -= 64
        places[decision.choice] += 1
    assert set(places.values()) == {3}


def test_a_prompt_that_is_known_stays_though_others_have_more_room() -> None:
    assert choose(view("a", matched_blocks=62, free_blocks=10), view("b", free_blocks=500)) == "a"


def test_one_hot_context_spreads_once_its_owner_is_swamped() -> None:
    places, queued = burst([(0, number) for number in range(400)])
    assert len(places[0]) == 4
    assert max(queued.values()) <= 2 * sum(queued.values()) / 4


def test_on_an_idle_fleet_all_begin_with_a_prompt_that_many_bring() -> None:
    router = cold_fleet(8)[1]
    places = set[str]()
    for number in range(12):
        request, now = travel_request(0, number), number * 0.01
        decision = router.route(request, request.tokens, set(), now)
        assert decision is not None
        router.take(request, decision, now)
        places.add(decision.choice)
    assert len(places) >= 6


def test_what_is_reused_goes_where_kv_is_free_though_it_is_slower() -> None:
    slow = replace(COST, c_lin=COST.c_lin * 4, c0=COST.c0 * 4, c_dec=COST.c_dec * 4)
    for reuse, choice in ((0.9, "b"), (0.1, "a")):
        full = view("a", active_blocks=930, decoding=20, stay_s=10.0, reuse=reuse)
        roomy = view("b", active_blocks=300, decoding=20, stay_s=40.0, reuse=reuse, cost=slow)
        assert choose(full, roomy) == choice


def test_two_gateways_agree_on_a_cold_fleet() -> None:
    for context in range(20):
        first, second = (cold_fleet(8)[1].route(travel_request(context, q), 1025, set(), 0.0) for q in (1, 2))
        assert first is not None and second is not None
        assert first.choice == second.choice
