"""The parts of the check, in order, each with its own limit of time; and how one is run."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from loadtest.gpu.attention import measure_attention
from loadtest.gpu.bench import Bench
from loadtest.gpu.greedy import check_greedy
from loadtest.gpu.model_steps import measure_decode, measure_decode_8b, measure_prefill, measure_prefill_8b
from loadtest.gpu.parity import check_parity
from loadtest.gpu.peaks import measure_peaks
from loadtest.gpu.sampling import measure_small_kernels
from loadtest.gpu.vllm_8b import measure_vllm_8b
from loadtest.gpu.workload import measure_workload

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    run: Callable[[Bench], None]


PARTS = (
    Part("peaks", measure_peaks),
    Part("decode", measure_decode),
    Part("parity", check_parity),
    Part("greedy", check_greedy),
    Part("attention", measure_attention),
    Part("prefill", measure_prefill),
    Part("decode_8b", measure_decode_8b),
    Part("workload", measure_workload),
    Part("small_kernels", measure_small_kernels),
    Part("prefill_8b", measure_prefill_8b),
    Part("vllm_8b", measure_vllm_8b),
)


def run_part(part: Part, bench: Bench) -> None:
    """Never raises: what went wrong in one part is a finding, and the others are still of interest."""
    started = time.monotonic()
    try:
        part.run(bench)
    except Exception as error:
        log.exception("%s failed", part.name)
        bench.record.check(f"{part.name} ran to its end", False, f"{type(error).__name__}: {error}"[:500])
    else:
        bench.record.check(f"{part.name} ran to its end", True)
    bench.record.figure(f"part_{part.name}_s", time.monotonic() - started)
