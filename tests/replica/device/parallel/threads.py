"""Ranks as threads of one process, with real gloo between them: what they compute is what processes would, and costs no
start of theirs."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from replica.device.parallel.collective import Collective, open_store
from replica.device.weights import Shard

T = TypeVar("T")


class Ranks:
    """`run` calls a function once for each rank, side by side."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pool = ThreadPoolExecutor(size)
        stores = [open_store(0, Shard(0, size))]
        stores += [open_store(stores[0].port, Shard(rank, size)) for rank in range(1, size)]
        self._stores = stores
        self.collectives: list[Collective] = self._map(self._meet)

    def run(self, work: Callable[[Collective], T]) -> list[T]:
        """What each rank returned, in order."""

        def quietly(rank: int) -> T:
            with torch.inference_mode():
                return work(self.collectives[rank])

        return self._map(quietly)

    def close(self) -> None:
        for collective in self.collectives:
            collective.close()
        self._pool.shutdown()

    def _meet(self, rank: int) -> Collective:
        return Collective(self._stores[rank], Shard(rank, self.size), torch.device("cpu"))

    def _map(self, work: Callable[[int], T]) -> list[T]:
        return list(self._pool.map(work, range(self.size), timeout=60))


@contextmanager
def ranks_of(size: int) -> Iterator[Ranks]:
    ranks = Ranks(size)
    try:
        yield ranks
    finally:
        ranks.close()
