"""What follows from the figures, and what they should be."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    least: float | None = None
    most: float | None = None

    def met(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        return f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}"


TARGETS: dict[str, Target] = {
    "decode_1_ms": Target(most=0.8),
    "decode_64_ms": Target(most=1.2),
    "decode_64_tokens_per_s": Target(least=50_000),
    "graphs_x_eager_1": Target(least=3),
    "prefill_8k_tokens_per_s": Target(least=200_000),
    "prefill_8x1k_tokens_per_s": Target(least=200_000),
    "decode_attention_64x4k_of_bandwidth": Target(least=0.6),
    "decode_8b_1_of_bandwidth": Target(least=0.85),
    "decode_8b_64_x_vllm": Target(least=1.0),
    "workload_tokens_per_s_x_vllm": Target(least=1.0),
}
"""On an H200; of the others nothing was asked."""

UNITS = {
    "_ms": "ms",
    "_us": "µs",
    "_tokens_per_s": "tokens/s",
    "_gb_per_s": "GB/s",
    "_tflops": "TFLOP/s",
    "_gib": "GiB",
    "_nats": "nats",
    "_s": "s",
}


def unit_of(name: str) -> str:
    return next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "")


def derived(figures: Mapping[str, float]) -> dict[str, float]:
    """Shares of what the same device did at best in the same run, and ratios of two figures."""
    found: dict[str, float] = {}

    def ratio(name: str, over: str, under: str) -> None:
        if over in figures and figures.get(under):
            found[name] = float(f"{figures[over] / figures[under]:.4g}")

    for name in figures:
        if name.endswith("_gb_per_s") and name != "copy_gb_per_s":
            ratio(f"{name.removesuffix('_gb_per_s')}_of_bandwidth", name, "copy_gb_per_s")
        if name.endswith("_tflops") and name != "matmul_tflops":
            ratio(f"{name.removesuffix('_tflops')}_of_matmul", name, "matmul_tflops")
        if name.endswith("_eager_ms"):
            batch = name.removesuffix("_eager_ms").rpartition("_")[2]
            ratio(f"graphs_x_eager_{batch}", name, name.replace("_eager", ""))
    ratio("decode_8b_1_x_vllm", "vllm_8b_1_ms", "decode_8b_1_ms")
    ratio("decode_8b_64_x_vllm", "vllm_8b_64_ms", "decode_8b_64_ms")
    ratio("workload_tokens_per_s_x_vllm", "workload_tokens_per_s", "workload_vllm_tokens_per_s")
    ratio("workload_ttft_p50_over_vllm", "workload_ttft_p50_ms", "workload_vllm_ttft_p50_ms")
    return found
