"""Weights of a folder in Hugging Face format, streamed tensor by tensor to a device, in the precision that is computed
in. Of a tensor that ranks share only the rank's own part is read."""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from safetensors import safe_open

from replica.device.transfer import new_event
from replica.model.layers import Linear
from replica.model.weights import Split, WeightFiles
from replica.protocol.text import ModelFolderError

log = logging.getLogger(__name__)

_STAGING_BYTES = 64 << 20
_REPORT_S = 2.0
_REPORT_SHARE = 0.1

Combine = Callable[[Split, torch.Tensor], torch.Tensor]
"""What ranks do with the outputs of a linear map that they share: COLUMNS is summed, VOCABULARY put side by side."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part of each shared weight is ours."""

    rank: int = 0
    size: int = 1

    def part(self, length: int, name: str) -> slice:
        """Raises ModelFolderError where ranks can't share equally."""
        if length % self.size:
            raise ModelFolderError(f"{name}: {length} can't be divided by {self.size} ranks (tensor_parallel)")
        width = length // self.size
        return slice(self.rank * width, (self.rank + 1) * width)

    def padded_part(self, length: int) -> tuple[slice, int]:
        """Ours, and how much of it is padding: at the end, where the last ranks have less than the others."""
        width = -(-length // self.size)
        start, stop = min(self.rank * width, length), min((self.rank + 1) * width, length)
        return slice(start, stop), width - (stop - start)


WHOLE = Shard()


class DeviceWeights:
    """Implements `Weights`. A tensor that is asked for twice, as a tied embedding is, is held once."""

    def __init__(
        self,
        files: WeightFiles,
        device: torch.device,
        dtype: torch.dtype,
        shard: Shard,
        combine: Combine,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = files
        self._device = device
        self._dtype = dtype
        self._shard = shard
        self._combine = combine
        self._handles: dict[Path, Any] = {}
        self._stack = contextlib.ExitStack()
        self._held: WeakValueDictionary[tuple[str, Split], torch.Tensor] = WeakValueDictionary()
        self._stage = Stage(device) if device.type == "cuda" else None
        self._progress = Progress(sum(path.stat().st_size for path in files.files) // shard.size, clock)

    def __enter__(self) -> "DeviceWeights":
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the files; the staging memory goes."""
        self._stack.close()
        self._handles.clear()
        self._stage = None

    def load(self, name: str, split: Split = Split.NONE) -> torch.Tensor:
        held = self._held.get((name, self._really(split)))
        return self._load_rows([name], split) if held is None else held

    def linear(self, names: Sequence[str], bias: torch.Tensor | None = None, split: Split = Split.NONE) -> Linear:
        weight = self.load(names[0], split) if len(names) == 1 else self._load_rows(names, split)
        if self._shard.size == 1 or split in (Split.NONE, Split.ROWS):
            return lambda x: F.linear(x, weight, bias)
        combine = self._combine
        if bias is None:
            return lambda x: combine(split, F.linear(x, weight))
        return lambda x: combine(split, F.linear(x, weight)).add_(bias)

    def report(self) -> None:
        self._progress.report_end()

    def _load_rows(self, names: Sequence[str], split: Split) -> torch.Tensor:
        """One below the other, each copied to its place."""
        parts = [self._read(name, split) for name in names]
        rows = sum(len(part) for part in parts)
        whole = torch.empty((rows, *parts[0].shape[1:]), dtype=self._dtype, device=self._device)
        start = 0
        for part in parts:
            self._copy(part, whole[start : start + len(part)])
            start += len(part)
        if len(names) == 1:
            self._held[names[0], self._really(split)] = whole
        return whole

    def _really(self, split: Split) -> Split:
        """Alone there is nothing to share, so a tied embedding is one tensor however it is asked for."""
        return Split.NONE if self._shard.size == 1 else split

    def _read(self, name: str, split: Split) -> torch.Tensor:
        """In the machine's memory and as stored. Raises ModelFolderError."""
        path = self._files.path_of(name)
        if path not in self._handles:
            self._handles[path] = self._stack.enter_context(safe_open(path, framework="pt"))
        if self._shard.size == 1 or split is Split.NONE:
            whole: torch.Tensor = self._handles[path].get_tensor(name)
            return whole
        stored = self._handles[path].get_slice(name)
        shape = stored.get_shape()
        if split is Split.COLUMNS:
            part: torch.Tensor = stored[:, self._shard.part(shape[1], name)]
        elif split is Split.VOCABULARY:
            own, padding = self._shard.padded_part(shape[0])
            part = F.pad(stored[own], (0, 0, 0, padding)) if padding else stored[own]
        else:
            part = stored[self._shard.part(shape[0], name)]
        return part

    def _copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        if self._stage is None:
            target.copy_(source)
        elif source.dtype == target.dtype:
            self._stage.copy(source, target)
        else:
            # Converted there: the device does it in no time, and a processor wouldn't.
            there = torch.empty(source.shape, dtype=source.dtype, device=self._device)
            self._stage.copy(source, there)
            target.copy_(there)
        self._progress.add(source.nbytes)


class Stage:
    """Two pinned buffers in turn: while one is copied to the device, the other is filled from the file."""

    def __init__(self, device: torch.device, size: int = _STAGING_BYTES) -> None:
        pinned = device.type == "cuda"
        self._buffers = [torch.empty(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
        self._copied = [new_event() if pinned else None for _ in range(2)]
        self._turn = 0

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Of the same shape and dtype; the target is contiguous."""
        assert source.dtype == target.dtype and target.is_contiguous(), (source.dtype, target.dtype)
        here, there = _bytes(source.contiguous()), _bytes(target)
        size = len(self._buffers[0])
        for start in range(0, len(here), size):
            buffer, copied = self._buffers[self._turn], self._copied[self._turn]
            self._turn = 1 - self._turn
            if copied is not None:
                copied.synchronize()
            count = min(size, len(here) - start)
            buffer[:count].copy_(here[start : start + count])
            there[start : start + count].copy_(buffer[:count], non_blocking=True)
            if copied is not None:
                copied.record()


class Progress:
    """A line in the log for each tenth, or every two seconds."""

    def __init__(self, total: int, clock: Callable[[], float]) -> None:
        self._total = max(1, total)
        self._clock = clock
        self._started = clock()
        self._done = 0
        self._reported = (0, self._started)

    def add(self, num_bytes: int) -> None:
        self._done += num_bytes
        done, at = self._reported
        now = self._clock()
        if self._done - done >= _REPORT_SHARE * self._total or now - at >= _REPORT_S:
            self._reported = (self._done, now)
            share = min(100, 100 * self._done // self._total)
            log.info("weights: %d %%, %.2f of %.2f GB, %s", share, self._done / 1e9, self._total / 1e9, self._rate(now))

    def report_end(self) -> None:
        now = self._clock()
        log.info("weights: all there, %.2f GB in %.1f s, %s", self._done / 1e9, now - self._started, self._rate(now))

    def _rate(self, now: float) -> str:
        return f"{self._done / 1e9 / max(1e-9, now - self._started):.2f} GB/s"


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
