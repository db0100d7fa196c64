"""The cache without reuse: pages for live sequences and nothing else. The oracle in tests, and the ablation."""

from replica.cache.block_pool import BlockPool
from replica.cache.manager import CacheEvents
from replica.protocol.hashing import BLOCK_SIZE
from replica.sequence import Sequence


class NaiveCache:
    def __init__(self, num_pages: int) -> None:
        self._pool = BlockPool(num_pages)

    @property
    def num_pages(self) -> int:
        return self._pool.num_pages

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    @property
    def num_evictable(self) -> int:
        return 0

    def match(self, sequence: Sequence) -> int:
        return 0

    def admit(self, sequence: Sequence) -> int:
        assert not sequence.pages
        return 0

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        missing = -(-num_tokens // BLOCK_SIZE) - len(sequence.pages)
        if missing > self._pool.num_free:
            return False
        sequence.pages.extend(self._pool.allocate() for _ in range(missing))
        return True

    def commit(self, sequence: Sequence) -> None:
        pass

    def release(self, sequence: Sequence) -> None:
        self._pool.free_from_sequence(reversed(sequence.pages))
        sequence.pages = []
        sequence.num_computed = 0

    def take_events(self) -> CacheEvents:
        return CacheEvents((), ())

    def check_integrity(self, live: list[Sequence]) -> None:
        pages = [page for sequence in live for page in sequence.pages]
        assert len(set(pages)) == len(pages) == self._pool.num_sequence
