"""Decode steps recorded as CUDA graphs: a whole forward is launched as one, where its some hundred kernels one by one
take longer to launch than to run.

A graph has fixed shapes and addresses. So there is one for each of some batch sizes, all over the same input tensors,
and a smaller batch is padded with rows that write nothing and see nothing. The logits and the sampler aren't in it:
they are launched while the graph still runs, so they cost the device nothing, need no padding, and one graph serves
greedy and drawn rows alike.
"""

import logging
from collections.abc import Callable

import torch

from replica.device.groups import MIN_ROWS
from replica.device.inputs import Inputs, StaticInputs
from replica.device.plan import StepPlan

log = logging.getLogger(__name__)

Forward = Callable[[Inputs], torch.Tensor]
Replay = Callable[[], torch.Tensor]
"""Computes anew over the same tensors; the result is the same tensor each time."""
Capture = Callable[[Callable[[], torch.Tensor]], Replay]


def batch_sizes(max_running: int) -> list[int]:
    """1, 2, 4, then every eighth: at most 7 rows of padding, which cost next to nothing."""
    sizes = [size for size in (1, 2, 4) if size < max_running]
    return [*sizes, *range(8, max_running, 8), max_running]


class DecodeGraphs:
    def __init__(self, forward: Forward, inputs: StaticInputs, sizes: list[int], cascade: bool) -> None:
        """With `cascade` there is a second graph of each size whose rows may have common pages."""
        self._forward = forward
        self._inputs = inputs
        self._sizes = sorted(sizes)
        self._cascade = cascade
        self._replays: dict[tuple[int, bool], Replay] = {}

    def capture(self, capture: Capture) -> None:
        """The largest first: the smaller ones find room in the memory that it has taken."""
        for size in reversed(self._sizes):
            for cascade in (False, True) if self._cascade and size >= MIN_ROWS else (False,):
                inputs = self._inputs.view(size, cascade)
                self._replays[size, cascade] = capture(lambda inputs=inputs: self._forward(inputs))  # type: ignore[misc]
        log.info("%d graphs, of %s decodes", len(self._replays), ", ".join(map(str, self._sizes)))

    def run(self, plan: StepPlan) -> torch.Tensor | None:
        """Hidden states, at least a row for each of the plan's; None where no graph fits."""
        size = next((size for size in self._sizes if size >= plan.num_tokens), None)
        if not plan.is_decode or size is None:
            return None
        replay = self._replays.get((size, len(plan.group_pages) > 0))
        if replay is None:
            return None
        self._inputs.fill(plan, size)
        return replay()


def cuda_capture(with_ranks: bool = False) -> Capture:
    """Graphs that share one memory pool: they never run at the same time, and what one leaves behind nobody reads.

    With ranks there are collectives in them. All ranks capture the same graphs in the same order, as they are all built
    in the same way, and replay them in the order of the same plans. NCCL has a thread that asks after earlier
    collectives meanwhile, which would end a capture that forbids it to all threads."""
    mode = "thread_local" if with_ranks else "global"
    pool = torch.cuda.graph_pool_handle()

    def capture(compute: Callable[[], torch.Tensor]) -> Replay:
        # Once as it is: kernels are compiled and libraries make their workspaces, which no graph may hold.
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            compute()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode=mode):
            output = compute()

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay

    return capture
