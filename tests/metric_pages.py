"""Prometheus expositions, parsed by its own reader."""

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True)
class Page:
    types: dict[str, str]
    """By family name, without `_total`."""
    series: frozenset[tuple[str, frozenset[tuple[str, str]]]]
    values: dict[str, float]
    """Of samples without labels."""
    buckets: dict[str, tuple[float, ...]]


def parse(text: str) -> Page:
    """Raises ValueError for what isn't in the format."""
    types, series, values = dict[str, str](), set(), dict[str, float]()
    buckets = dict[str, dict[float, None]]()
    for family in text_string_to_metric_families(text):
        types[family.name] = family.type
        assert family.documentation, family.name
        for sample in family.samples:
            series.add((sample.name, frozenset(sample.labels.items())))
            if not sample.labels:
                values[sample.name] = sample.value
            if sample.name == f"{family.name}_bucket" and sample.labels["le"] != "+Inf":
                buckets.setdefault(family.name, {})[float(sample.labels["le"])] = None
    return Page(types, frozenset(series), values, {name: tuple(sorted(found)) for name, found in buckets.items()})
