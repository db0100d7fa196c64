"""Counters and histograms for one thread: counting is an addition, where prometheus_client's own take a lock for each
label and each number, 3 µs a time. They are read as its are.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Count:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount


class Spread:
    """Of values over buckets."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


_Child = TypeVar("_Child", Count, Spread)


class _ByLabels(Collector, Generic[_Child]):
    def __init__(
        self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry, make: Callable[[], _Child]
    ) -> None:
        self._name = name
        self._text = text
        self._labels = tuple(labels)
        self._make: Callable[[], _Child] = make
        self._children: dict[tuple[str, ...], _Child] = {}
        if not labels:
            self.labels()
        registry.register(self)

    def labels(self, *values: str) -> _Child:
        child = self._children.get(values)
        if child is None:
            if len(values) != len(self._labels):
                raise ValueError(f"{self._name} has the labels {self._labels}")
            child = self._children[values] = self._make()
        return child

    def describe(self) -> Iterable[Metric]:
        """So that the registry knows which names are taken."""
        return self.collect()

    def items(self) -> Iterator[tuple[tuple[str, ...], _Child]]:
        return iter(self._children.items())


class Counters(_ByLabels[Count]):
    def __init__(self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        self._sums: dict[tuple[str, ...], Sequence[Count]] = {}
        super().__init__(name, text, labels, registry, Count)

    def sum_up(self, labels: tuple[str, ...], of: Sequence[Count]) -> None:
        """With these labels it is the sum of others, made when somebody looks."""
        self._sums[labels] = of

    def inc(self, amount: float = 1.0) -> None:
        """Of one without labels."""
        self.labels().inc(amount)

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for values, count in self.items():
            family.add_metric(values, count.value)
        for values, of in self._sums.items():
            family.add_metric(values, sum(count.value for count in of))
        yield family


class Histograms(_ByLabels[Spread]):
    def __init__(
        self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry, buckets: Sequence[float]
    ) -> None:
        """`buckets`: upper bounds, rising; values equal to one are in it."""
        self._bounds = tuple(buckets)
        super().__init__(name, text, labels, registry, lambda: Spread(self._bounds))

    def observe(self, value: float) -> None:
        """Of one without labels."""
        self.labels().observe(value)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for values, spread in self.items():
            rising = zip(bounds, map(float, accumulate(spread.counts)), strict=True)
            family.add_metric(values, list(rising), spread.total)
        yield family
