"""A replica's cache as a set of prefixes, in a small world of prompts, so that replicas share blocks."""

from functools import cache
from hashlib import blake2b
from random import Random

from replica.cache.manager import CacheEvents

Path = tuple[int, ...]
BRANCHES = 3
DEPTH = 7


@cache
def block(path: Path) -> int:
    return int.from_bytes(blake2b(repr(path).encode(), digest_size=8).digest(), "little")


def prompt(rng: Random) -> list[int]:
    path = [rng.randrange(BRANCHES) for _ in range(DEPTH)]
    return [block(tuple(path[: depth + 1])) for depth in range(DEPTH)]


class Tree:
    def __init__(self, most: int) -> None:
        self._most = most
        self.paths: dict[Path, int] = {}
        """Children of each."""

    def hashes(self) -> set[int]:
        return {block(path) for path in self.paths}

    def change(self, rng: Random) -> CacheEvents:
        """Some prefix is computed; what there is no room for is evicted, leaves first."""
        added: set[int] = set()
        removed: set[int] = set()
        for _ in range(rng.randrange(1, 4)):
            path = [rng.randrange(BRANCHES) for _ in range(rng.randrange(1, DEPTH + 1))]
            for depth in range(len(path)):
                self._add(tuple(path[: depth + 1]), added, removed)
        while len(self.paths) > self._most or (self.paths and rng.random() < 0.3):
            leaf = rng.choice([path for path, children in self.paths.items() if not children])
            self._remove(leaf, added, removed)
        return CacheEvents(tuple(added), tuple(removed))

    def _add(self, path: Path, added: set[int], removed: set[int]) -> None:
        if path in self.paths:
            return
        self.paths[path] = 0
        if len(path) > 1:
            self.paths[path[:-1]] += 1
        if block(path) in removed:
            removed.remove(block(path))
        else:
            added.add(block(path))

    def _remove(self, path: Path, added: set[int], removed: set[int]) -> None:
        del self.paths[path]
        if len(path) > 1:
            self.paths[path[:-1]] -= 1
        if block(path) in added:
            added.remove(block(path))
        else:
            removed.add(block(path))
