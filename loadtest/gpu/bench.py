"""What every part of the check is given: the device, where its findings go, its time, and how to time."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from loadtest.gpu.record import Recorder

Run = Callable[[], object]

_ROUNDS = 7
_WARM_UP_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Bench:
    device: torch.device
    small: bool
    """Sizes that show on any CPU that the check itself works."""
    folder: Path
    """The model whose answers are compared."""
    vllm_python: Path | None
    record: Recorder
    deadline_s: float
    """By `time.monotonic`: measurements that would begin later are left out."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def has_time(self, name: str) -> bool:
        if time.monotonic() < self.deadline_s:
            return True
        self.record.note(f"{name}: left out, the part's time was up")
        return False

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def kernel_seconds(self, run: Run, repeat: int = 20) -> float:
        """Of one run, back to back on the device without the host: they are replayed as one graph. Median."""
        if self.device.type != "cuda":
            return self.seconds(run)
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            run()  # compiles; a graph can't hold that
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(repeat):
                run()
        return self.seconds(graph.replay) / repeat

    def seconds(self, run: Run, repeat: int = 1) -> float:
        """Of one run, the host's part included where it is the longer one: `repeat` of them are launched before
        anything is waited for. Median of some rounds."""
        samples = []
        for index in range(3 if self.small else _WARM_UP_ROUNDS + _ROUNDS):
            self.wait()
            start = time.perf_counter()
            for _ in range(repeat):
                run()
            self.wait()
            if index >= (1 if self.small else _WARM_UP_ROUNDS):
                samples.append((time.perf_counter() - start) / repeat)
        return statistics.median(samples)
