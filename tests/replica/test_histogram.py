import random

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from replica.histogram import LightHistogram

BOUNDS = (0.1, 0.5, 2.0)


def test_it_is_rendered_as_prometheus_own_histogram_is(seed: int) -> None:
    numbers = random.Random(seed)
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    light = LightHistogram("x", "text", BOUNDS, ours)
    plain = Histogram("x", "text", buckets=BOUNDS, registry=theirs)
    for value in [*BOUNDS, *(numbers.expovariate(1) for _ in range(500))]:
        light.observe(value)
        plain.observe(value)
    for name in ("x_count", "x_sum"):
        assert ours.get_sample_value(name) == theirs.get_sample_value(name)
    for bound in ("0.1", "0.5", "2.0", "+Inf"):
        assert ours.get_sample_value("x_bucket", {"le": bound}) == theirs.get_sample_value("x_bucket", {"le": bound})
    assert b"# TYPE x histogram" in generate_latest(ours)


def test_several_at_once_count_as_several() -> None:
    registry = CollectorRegistry()
    LightHistogram("x", "text", BOUNDS, registry).observe(0.25, 4)
    assert registry.get_sample_value("x_bucket", {"le": "0.5"}) == registry.get_sample_value("x_count") == 4
    assert registry.get_sample_value("x_sum") == 1.0
