"""Eviction policies by name."""

from collections.abc import Callable, Mapping

from replica.cache.eviction.base import Eviction
from replica.cache.eviction.learned import Learned
from replica.cache.eviction.lru import LRU

EVICTIONS: Mapping[str, Callable[[int], Eviction]] = {
    "learned": Learned,
    "lru": LRU,
}
"""Each takes the number of pages in the cache."""
