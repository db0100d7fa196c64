"""They are read as prometheus_client's own are."""

import re
from random import Random

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from gateway.counters import Counters, Histograms

BUCKETS = (0.001, 0.5, 1.0, 60.0)


def exposition(registry: CollectorRegistry) -> list[str]:
    """Without the times of creation."""
    lines = generate_latest(registry).decode().splitlines()
    return sorted(line for line in lines if not re.search(r"_created\b", line))


def test_they_read_the_same() -> None:
    print("seed", 1)
    rng = Random(1)
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counters = (Counters("a", "A", ("x", "y"), ours), Counter("a", "A", ("x", "y"), registry=theirs))
    bare = (Counters("b", "B", (), ours), Counter("b", "B", registry=theirs))
    histograms = (
        Histograms("c", "C", ("x",), ours, BUCKETS),
        Histogram("c", "C", ("x",), registry=theirs, buckets=BUCKETS),
    )
    assert exposition(ours) == exposition(theirs)
    for _ in range(200):
        x, y, amount = rng.choice("pq"), rng.choice('r"\n'), rng.choice((1, 2, 0.25))
        value = rng.choice((0.0, 0.001, 0.75, 1.0, 61.0))
        counters[0].labels(x, y).inc(amount)
        counters[1].labels(x, y).inc(amount)
        bare[0].inc()
        bare[1].inc()
        histograms[0].labels(x).observe(value)
        histograms[1].labels(x).observe(value)
    assert exposition(ours) == exposition(theirs)
    assert ours.get_sample_value("c_bucket", {"x": "p", "le": "0.5"}) is not None


def test_a_sum_is_made_when_somebody_looks() -> None:
    registry = CollectorRegistry()
    counters = Counters("a", "A", ("x",), registry)
    parts = counters.labels("p"), counters.labels("q")
    counters.sum_up(("both",), parts)
    parts[0].inc(2)
    parts[1].inc(3)
    assert registry.get_sample_value("a_total", {"x": "both"}) == 5


def test_a_name_is_taken_once() -> None:
    registry = CollectorRegistry()
    Counters("a", "A", (), registry)
    with pytest.raises(ValueError, match="a"):
        Counters("a", "A", (), registry)


def test_labels_must_be_as_many_as_there_are_names() -> None:
    with pytest.raises(ValueError, match="has the labels"):
        Counters("a", "A", ("x",), CollectorRegistry()).labels("p", "q")
