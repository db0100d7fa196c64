"""One replica, against closed forms and against a replica that takes every step."""

import pytest

from loadtest.simulate.limits import infinite
from loadtest.simulate.prompts import Row, make_requests
from loadtest.simulate.replica import SimReplica
from loadtest.simulate.run import FleetShape, Simulation
from loadtest.simulate.workload import Workload
from replica.cache.manager import CacheManager
from replica.config import Order
from replica.profiles import Profile

PROFILE = Profile("test", "made up", 0.01, 0.001, 0.0, 0.0005, max_step_tokens=1000, max_running=32, kv_tokens=16_000)
ALONE = Profile("alone", "made up", 0.01, 0.001, 1e-6, 0.0, max_step_tokens=1 << 20, max_running=1, kv_tokens=160_000)


def unique(number: int, tokens: int) -> list[int]:
    return [1000 * (number + 1) + block for block in range(-(-tokens // 16))]


def replica(profile: Profile, stride: int = 1) -> SimReplica:
    return SimReplica("r", "e", profile, stride, Order.FCFS, CacheManager)


def test_first_come_first_served_by_the_closed_form() -> None:
    sizes = [100, 2000, 50, 700]
    rows = [Row(0.3 * number, tokens, unique(number, tokens), 1) for number, tokens in enumerate(sizes)]
    load = Workload("", make_requests(rows, [-1] * len(rows)), 1)
    shape = FleetShape(ALONE, replicas=1, latency=0.0, order=Order.FCFS)
    outcome = Simulation(load, shape, "round_robin", seed=0).run()
    free = 0.0
    for call in outcome.calls:
        free = max(free, call.at) + ALONE.cost.prefill_s(call.request.tokens, 0)
        assert call.first_at == pytest.approx(free)


def test_one_endless_replica_finds_all_that_was_ever_computed() -> None:
    rows = [Row(5.0 * n, 100, [*range(1, 1 + n % 5), *unique(n, 100)[n % 5 :]], 1) for n in range(30)]
    load = Workload("", make_requests(rows, [-1] * len(rows)), 1)
    shape = FleetShape(ALONE, replicas=1, order=Order.FCFS)
    outcome = Simulation(load, shape, "ttft", seed=0).run()
    assert [call.delivered for call in outcome.calls] == infinite(load.requests)


def test_an_answer_comes_a_token_a_step() -> None:
    (request,) = make_requests([Row(0, 100, unique(0, 100), 50)], [-1])
    one = replica(PROFILE)
    one.add(request, 0.0)
    first_at = one.next_at()
    assert first_at == pytest.approx(0.01 + 0.1)
    one.advance(first_at)
    assert [job.request for job in one.take_told().first] == [request]
    done_at = one.next_at()
    assert done_at == pytest.approx(first_at + 49 * 0.0105)
    one.advance(done_at)
    assert [job.request for job in one.take_told().done] == [request]
    assert one.cache.num_evictable == (100 + 49) // 16


@pytest.mark.parametrize("stride", [1, 4])
def test_passing_over_steps_gives_what_taking_each_gives(stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Odd times: where one comes just as a step ends, rounding says which is first.
    rows = [Row(0.0517031 * n, 60 + 7 * n, unique(n, 60 + 7 * n), 20 + 13 * (n % 5)) for n in range(40)]
    load = Workload("", make_requests(rows, [-1] * len(rows), stride), stride)

    def run() -> list[tuple[float | None, float | None, int]]:
        outcome = Simulation(load, FleetShape(PROFILE, replicas=2), "round_robin", seed=0).run()
        return [(call.first_at, call.done_at, call.delivered) for call in outcome.calls]

    passed = run()
    monkeypatch.setattr(SimReplica, "_may_go_steady", lambda self: False)
    for quick, slow in zip(passed, run(), strict=True):
        assert quick == pytest.approx(slow)


def test_a_load_report_counts_what_is_there() -> None:
    first, second = make_requests([Row(0, 100, unique(0, 100), 50), Row(0, 1500, unique(1, 1500), 5)], [-1, -1])
    one = replica(PROFILE)
    one.add(first, 0.0)
    one.advance(one.next_at())
    one.add(second, 0.12)
    load = one.load(0.12)
    assert (load.running, load.waiting, load.decoding, load.pending_tokens) == (1, 1, 1, 1500)
    assert load.total_blocks == 1000
