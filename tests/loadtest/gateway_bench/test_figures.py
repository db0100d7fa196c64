import pytest

from loadtest.gateway_bench.bindings import Done
from loadtest.gateway_bench.figures import Figures, added_ms, headline, medians, of_run


def test_a_run_of_plain_requests_has_no_chunks() -> None:
    done = Done(answered=200, failed=1, chunks=0, seconds=2.0, firsts_s=[0.001, 0.003, 0.002])
    assert of_run(done, 0.1) == pytest.approx(
        {
            "failed": 1,
            "answered_per_s": 100,
            "first_p50_ms": 2,
            "first_p99_ms": 3,
            "cpu_ms_per_request": 0.5,
        }
    )


def test_a_run_of_streams_counts_by_the_chunk() -> None:
    done = Done(answered=10, failed=0, chunks=640, seconds=1.0, firsts_s=[0.001] * 10)
    assert of_run(done, 0.064)["cpu_s_per_10k_chunks"] == pytest.approx(1.0)
    assert "cpu_ms_per_request" not in of_run(done, None)


def test_a_run_without_answers_has_only_failures() -> None:
    assert of_run(Done(0, 3, 0, 1.0, []), 0.1) == {"failed": 3, "answered_per_s": 0}


def cpu(ms: float) -> Figures:
    return {"failed": 0.0, "cpu_ms_per_request": ms}


def first(ms: float) -> Figures:
    return {"failed": 0.0, "first_p50_ms": ms, "first_p99_ms": 10 * ms}


def test_ratios_are_taken_within_a_round() -> None:
    runs = {
        ("requests_1k", "ryokan"): [cpu(1.0), cpu(4.0), cpu(3.0)],
        ("requests_1k", "aiohttp"): [cpu(2.0), cpu(4.0), cpu(1.0)],
        ("requests_8k", "ryokan"): [cpu(1.0)],
        ("ttft_64", "direct"): [first(1.0), first(2.0)],
        ("ttft_64", "ryokan"): [first(3.0), first(8.0)],
        ("ttft_64", "nginx"): [first(2.0), first(3.0)],
        ("ttft_1", "direct"): [first(1.0)],
        ("ttft_1", "ryokan"): [first(1.5)],
        ("ttft_1", "nginx"): [first(0.5)],
    }
    assert headline(runs) == pytest.approx(
        {
            "cpu_per_request_x_aiohttp": 1.0,
            "added_ttft_64_ms": 4.0,
            "added_ttft_64_p99_ms": 40.0,
            "added_ttft_64_x_nginx": 4.0,
            "added_ttft_1_ms": 0.5,
            "added_ttft_1_p99_ms": 5.0,
        }
    )
    assert added_ms(runs, "ttft_64", "absent", "first_p50_ms") is None


def test_medians_add_up_failures() -> None:
    assert medians([cpu(1.0) | {"failed": 2.0}, cpu(3.0)]) == {"failed": 2.0, "cpu_ms_per_request": 2.0}
