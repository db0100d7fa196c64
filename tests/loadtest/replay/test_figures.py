import random

import pytest

from loadtest.client import RequestRecord
from loadtest.replay.figures import figures_of
from loadtest.simulate.prompts import Row, make_requests
from replica.protocol.records import CostModel

COST = CostModel(0.01, 0.001, 0.0, 0.0, 512)
ROWS = [Row(float(number), 40, [0, 1, 10 + number], 5) for number in range(10)]
REQUESTS = make_requests(ROWS, [-1] * len(ROWS))


def record(number: int, **changes: object) -> RequestRecord:
    at = 100.0 + number
    fields: dict[str, object] = {
        "due_s": at,
        "sent_s": at + 0.002,
        "first_token_s": at + 0.1,
        "end_s": at + 0.5,
        "prompt_tokens": 40,
    }
    fields |= {"output_tokens": 5, "cached_tokens": 32 if number else 0, "replica": f"r{number % 2}", "agent": number}
    return RequestRecord(messages=(), **(fields | changes))  # type: ignore[arg-type]


def test_figures_beside_their_limits() -> None:
    records = [record(number) for number in range(10)]
    random.Random(1).shuffle(records)
    figures = figures_of(records, REQUESTS, [COST, COST], 1000, ["r0", "r1"], lambda number, at_s: True)
    assert figures["hit"] == figures["hit_infinite"] == figures["hit_belady"] == 9 * 32 / 400
    assert figures["cached_tokens_limit"] == 9 * 32
    assert figures["ttft_mean_s"] == pytest.approx(0.1) and figures["sent_late_p99_s"] == pytest.approx(0.002)
    # The first computes 40 tokens, the others 8; nobody waits.
    assert figures["ttft_mean_bound_s"] == pytest.approx((0.05 + 9 * 0.018) / 10)
    assert figures["prompt_tokens_computed_by_replica"] == {"r0": 40 + 4 * 8, "r1": 5 * 8}


def test_the_warm_up_fills_caches_and_counts_in_nothing_else() -> None:
    records = [record(number, error="lost" if number == 9 else None) for number in range(10)]
    figures = figures_of(records, REQUESTS, [COST], 1000, ["r0", "r1"], lambda number, at_s: at_s >= 5)
    assert (figures["requests"], figures["requests_failed"], figures["requests_not_sent"]) == (5, 1, 0)
    assert figures["hit"] == figures["hit_infinite"] == 32 / 40
    assert figures["ttft_mean_bound_s"] == pytest.approx(0.018)


def test_no_bound_where_costs_are_not_known_yet() -> None:
    unknown = CostModel(0.0, 0.0, 0.0, 0.0, 1)
    figures = figures_of([record(0)], REQUESTS, [unknown], 10, ["r0"], lambda number, at_s: True)
    assert figures["ttft_mean_bound_s"] is None and figures["requests_not_sent"] == 9
