import pytest

from loadtest.client import RequestRecord
from loadtest.gateway_api import ReplicaShape
from loadtest.replay.agreement import compared, fitted_latency, simulated_figures
from loadtest.simulate.errors import SimulateError
from loadtest.simulate.prompts import Row
from loadtest.trace.flags import Loop
from loadtest.trace.plan import Plan
from replica.protocol.records import CostModel

COST = CostModel(0.01, 0.001, 0.0, 0.0, 512)
FLEET = [ReplicaShape(f"r{number}", COST, 100, 8, "shortest") for number in range(2)]
ROWS = [Row(number * 1.0, 40, [0, 1, 10 + number], 5) for number in range(10)]
PLAN = Plan("t", Loop.OPEN, 16, ROWS, [-1] * 10)


def probe(ttft_s: float, replica: str = "r0") -> RequestRecord:
    return RequestRecord((), prompt_tokens=100, cached_tokens=0, first_token_s=ttft_s, replica=replica)


def test_latency_is_what_the_cost_model_does_not_explain() -> None:
    assert fitted_latency([probe(0.114), probe(0.116), probe(5.0)], FLEET) == pytest.approx(0.003)
    assert fitted_latency([probe(0.05)], FLEET) == 0.0
    assert fitted_latency([probe(0.05, "gone")], FLEET) == 0.0


def test_a_plan_on_a_fleet_of_that_shape() -> None:
    """One at a time: 40 tokens, then 8 where the context is known."""
    figures = simulated_figures(PLAN, FLEET, "ttft", 0, 0.0, lambda number, at_s: at_s >= 1)
    assert figures["hit"] == 32 / 40 and figures["ttft_mean_s"] == pytest.approx(0.018, abs=1e-6)
    slower = simulated_figures(PLAN, FLEET, "ttft", 0, 0.25, lambda number, at_s: at_s >= 1)
    assert slower["ttft_mean_s"] == pytest.approx(0.518, abs=1e-6)


def test_replicas_differ_as_they_do_in_life() -> None:
    slow = ReplicaShape("slow", CostModel(0.1, 0.1, 0.0, 0.0, 512), 100, 8, "fcfs")
    figures = simulated_figures(PLAN, [FLEET[0], slow], "round_robin", 0, 0.0, lambda number, at_s: True)
    assert figures["ttft_p90_s"] > 3 and figures["ttft_mean_s"] < 2


def test_a_fleet_that_knows_no_costs_is_refused() -> None:
    unknown = ReplicaShape("new", CostModel(0.0, 0.0, 0.0, 0.0, 1), 100, 8, "")
    with pytest.raises(SimulateError, match="new doesn't know"):
        simulated_figures(PLAN, [unknown], "ttft", 0, 0.0, lambda number, at_s: True)


def test_differences() -> None:
    real = {"hit": 0.5, "ttft_mean_s": 0.2, "ttft_p50_s": None, "ttft_p90_s": 0.0, "itl_mean_s": 0.1}
    made = {"hit": 0.48, "ttft_mean_s": 0.21, "ttft_p50_s": 0.2, "ttft_p90_s": 0.1, "itl_mean_s": 0.1}
    work = {"prompt_tokens_computed_max_over_mean": 1.5}
    found = compared(real | work, made | work)
    assert found.keys() == {"hit", "TTFT mean", "ITL", "work max/mean"}
    assert found["hit"]["difference"] == pytest.approx(-0.02)
    assert found["TTFT mean"]["difference"] == pytest.approx(0.05)
