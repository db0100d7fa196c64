"""What ranks do together: sums and gathers, over NCCL between cards, over gloo between processes on CPUs.

The process groups are made directly and not through torch.distributed's global one: a process may hold several, one
after the other, and gloo listens on loopback alone instead of on whatever the host's name resolves to.
"""

from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d

from replica.device.weights import Shard

_DIST: Any = _distributed_c10d
"""Whose stubs lack half of what is used here."""
_TIMEOUT = timedelta(seconds=120)
"""Of one collective, which includes what another rank still compiles before it. A rank that has died is noticed by its
group at once; see group.py."""


def open_store(port: int, shard: Shard) -> Any:
    """Where ranks find each other, on loopback. Rank 0 listens; `port` 0 takes a free one."""
    return _DIST.TCPStore(
        "127.0.0.1", port, shard.size, is_master=shard.rank == 0, timeout=_TIMEOUT, wait_for_workers=False
    )


class Collective:
    """Every rank calls the same methods in the same order, from one thread. With NCCL, calls are queued on the current
    stream and wait for nothing on the host, so they can be captured in a CUDA graph."""

    def __init__(self, store: Any, shard: Shard, device: torch.device) -> None:
        """Waits for all ranks. Raises RuntimeError where one doesn't come."""
        self.shard = shard
        self.device = device
        self._group = _nccl(store, shard, device) if device.type == "cuda" else _gloo(store, shard)
        # NOTE: NCCL makes its buffers at a communicator's first use, which no graph capture survives.
        self.all_reduce(torch.ones(1, device=device))
        self.all_gather(torch.ones(1, 1, device=device))
        self.barrier()

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, in place; the same bits on each."""
        return self._reduce(x, _DIST.ReduceOp.SUM)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, columns] of each rank -> [rows, ranks x columns], in the order of ranks."""
        x = x.contiguous()
        rows, columns = x.shape
        gathered = x.new_empty((self.shard.size * rows, columns))
        options = _DIST.AllgatherOptions()
        options.asyncOp = False
        self._group._allgather_base(gathered, x, options).wait()
        return gathered.view(self.shard.size, rows, columns).transpose(0, 1).reshape(rows, self.shard.size * columns)

    def least(self, value: int) -> int:
        """Of all ranks' values, on the host."""
        return int(self._reduce(torch.tensor([value], device=self.device), _DIST.ReduceOp.MIN).item())

    def barrier(self) -> None:
        """Until all have come here, and the device has done what was asked before."""
        self.least(0)

    def close(self) -> None:
        """Without waiting for anybody. A second time does nothing."""
        if self.device.type == "cuda":
            self._group.abort()

    def _reduce(self, x: torch.Tensor, reduction: Any) -> torch.Tensor:
        options = _DIST.AllreduceOptions()
        options.reduceOp = reduction
        # On the current stream, instead of one of NCCL's own and two events more.
        options.asyncOp = False
        self._group.allreduce([x], options).wait()
        return x


def _gloo(store: Any, shard: Shard) -> Any:
    options = _DIST.ProcessGroupGloo._Options()
    options._devices = [_DIST.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = _TIMEOUT
    options._threads = 1
    return _DIST.ProcessGroupGloo(store, shard.rank, shard.size, options)


def _nccl(store: Any, shard: Shard, device: torch.device) -> Any:
    torch.cuda.set_device(device)
    options = _DIST.ProcessGroupNCCL.Options()
    options._timeout = _TIMEOUT
    return _DIST.ProcessGroupNCCL(store, shard.rank, shard.size, options)
