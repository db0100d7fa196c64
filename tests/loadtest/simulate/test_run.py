"""Every request ends once, tokens add up, and nothing is left behind."""

import pytest

from gateway.routing.registry import POLICIES
from loadtest.simulate.prompts import Row, make_requests
from loadtest.simulate.results import summarise
from loadtest.simulate.run import FleetShape, Outcome, Simulation
from loadtest.simulate.workload import Workload
from replica.profiles import Profile

PROFILE = Profile("test", "made up", 0.01, 0.001, 0.0, 0.0005, max_step_tokens=64, max_running=8, kv_tokens=1600)


def workload(count: int = 60, gap_s: float = 0.02, output: int = 40, stride: int = 1) -> Workload:
    """Three contexts of 5 blocks, each request with 2 blocks and 5 tokens of its own; every fourth goes on from
    the one before."""
    rows: list[Row] = []
    successors: list[int] = []
    for number in range(count):
        context = [1 + 10 * (number % 3) + block for block in range(5)]
        blocks = [*context, *(1000 + 10 * number + block for block in range(3))]
        if number % 4 == 3:
            before = rows[-1]
            blocks = [*before.blocks[:7], *(1000 + 10 * number + block for block in range(4))]
            successors[-1] = number
            rows.append(Row(0.3, 11 * 16 - 3, blocks, output, after=number - 1))
        else:
            rows.append(Row(number * gap_s, 7 * 16 + 5, blocks, output))
        successors.append(-1)
    return Workload("made up", make_requests(rows, successors, stride), stride)


def run(policy: str, load: Workload, **shape: object) -> Outcome:
    return Simulation(load, FleetShape(PROFILE, **{"replicas": 3} | shape), policy, seed=1).run()  # type: ignore[arg-type]


def check(load: Workload, outcome: Outcome) -> None:
    assert sorted(call.request.number for call in outcome.calls) == list(range(len(load.requests)))
    for call in outcome.calls:
        assert call.failed or (call.first_at is not None and call.done_at is not None)
    for replica in outcome.replicas:
        if replica.jobs:
            continue
        replica.check()
        assert not replica.scheduler.has_work
        assert replica.cache.num_free + replica.cache.num_evictable == replica.cache.num_pages
    for gateway in {call.gateway for call in outcome.calls}:
        assert gateway.fleet.prefilling() == []
        assert all(status.leases == 0 for status in gateway.fleet.statuses(outcome.ended_at).values())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("stride", [1, 8])
def test_every_request_ends_once_and_tokens_add_up(policy: str, stride: int) -> None:
    load = workload(stride=stride)
    outcome = run(policy, load, gateways=2)
    check(load, outcome)
    computed = sum(replica.computed_tokens for replica in outcome.replicas)
    delivered = sum(call.delivered for call in outcome.calls)
    figures = summarise(load, outcome)
    if figures.preemptions == 0:
        assert computed + delivered == sum(request.tokens for request in load.requests)
    assert figures.failed == 0


def test_the_same_seed_gives_the_same_result() -> None:
    load = workload()
    first, second = (summarise(load, run("ttft", load)) for _ in range(2))
    assert first == second


def test_where_pages_run_out_all_still_ends() -> None:
    load = workload(count=200, gap_s=0.001, output=300)
    outcome = run("round_robin", load, replicas=2)
    check(load, outcome)
    assert summarise(load, outcome).preemptions > 0


def test_a_replica_that_dies_fails_what_streamed_and_hands_on_the_rest() -> None:
    load = workload()
    outcome = run("round_robin", load, failures=((0, 0.6),))
    check(load, outcome)
    figures = summarise(load, outcome)
    assert 0 < figures.failed < 30
    assert all(call.first_at is not None for call in outcome.calls if call.failed)
    assert any(call.attempts > 1 and not call.failed for call in outcome.calls)


def test_a_replica_that_died_comes_back_with_an_epoch_of_its_own_and_nothing_cached() -> None:
    load = workload(count=200)
    outcome = run("round_robin", load, failures=((0, 0.6),), back_after=1.0)
    check(load, outcome)
    assert [replica.epoch for replica in outcome.replicas] == ["e2", "e1", "e1"]
    of_it = [call for call in outcome.calls if call.replica == "r0000" and not call.failed]
    assert not [call for call in of_it if 0.7 < call.at < 1.6]
    back = [call for call in of_it if call.epoch == "e2"]
    assert len(back) > 30 and back[0].delivered == 0 and back[-1].delivered > 0
    figures = summarise(load, outcome)
    computed = sum(call.request.tokens - call.delivered for call in outcome.calls if not call.failed)
    assert sum(replica.computed_tokens for replica in outcome.replicas) >= computed
    assert figures.failed == summarise(load, run("round_robin", load, failures=((0, 0.6),))).failed
