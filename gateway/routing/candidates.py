"""The replicas that may take a request, as columns of numbers: a policy computes over all of them at once.

A fleet of 1,000 replicas must be decided over within a millisecond, and Python takes that long to look at each of them
once. Arrays are this module's to make and nobody's to write to.
"""

from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from replica.protocol.hashing import BLOCK_SIZE

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

SIZES = 12
"""Classes of requests by what they have uncached: under 64 tokens, under 128, ..., from 65,536 on."""

COLUMNS = (
    *("waiting", "decoding", "active_blocks", "free_blocks", "total_blocks", "max_running", "stay_s"),
    *("trust", "unpromised", "reuse", "reuse_tokens"),
    *("c0", "c_lin", "c_att", "c_dec", "step_tokens", "shortest_first"),
)
"""What is known of a replica before a prompt is looked at; see Candidates for what each is."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """A place for each replica in every column."""

    ids: tuple[str, ...]
    queue_tokens: Floats
    """Uncached prompt tokens ahead of a new request, dead-reckoned between load reports."""
    waiting: Floats
    """Requests that have no first token yet."""
    decoding: Floats
    """Sequences that are being decoded."""
    active_blocks: Floats
    """KV blocks of sequences under way: neither free nor evictable."""
    free_blocks: Floats
    total_blocks: Floats
    """0 where the replica doesn't say."""
    max_running: Floats
    """Sequences that it computes at a time; 0 where it doesn't say."""
    stay_s: Floats
    """How long a request has been holding its KV blocks after its first token, of late; 0 where nothing is known."""
    trust: Floats
    """Of the cached tokens that its digest promises, the share that comes; 1 where nothing is known. See trust.py."""
    unpromised: Floats
    """Of those that nobody promises, the share that comes all the same; 0 where nothing is known."""
    reuse: Floats
    """Share of the replica's prompt tokens that its cache has been serving."""
    reuse_tokens: Floats
    """It reuses only multiples of so many; 0: any number."""
    c0: Floats
    """Of the cost model, in seconds; see replica.protocol.records.CostModel."""
    c_lin: Floats
    c_att: Floats
    c_dec: Floats
    step_tokens: Floats
    shortest_first: Floats
    """Whether the replica prefills what has the fewest tokens left before the others; else 0: in order of arrival."""
    size_tokens: Floats
    """(SIZES, replicas): the make-up of what waits, as far as requests are known one by one. It may exceed the queue:
    a request counts in full until it is done."""
    size_counts: Floats
    id_hash: NDArray[np.uint64]
    matched_blocks: Floats
    """Leading blocks of the prompt that the replica holds or is about to compute."""
    held_blocks: Floats
    """Those of them that it holds for certain."""

    def __len__(self) -> int:
        return len(self.ids)

    def cached_tokens(self, tokens: int) -> Floats:
        """Of a prompt of so many tokens, what each cache should give: whole blocks, and one token is left to compute
        for the logits."""
        return self._usable(self.matched_blocks, tokens)

    def held_tokens(self, tokens: int) -> Floats:
        return self._usable(self.held_blocks, tokens)

    def credited_tokens(self, tokens: int) -> Floats:
        """`cached_tokens` as experience says: less for a cache that doesn't keep its digest's promises, more for one
        whose digest lags behind it; never more than a prompt of so many tokens can find."""
        cached = self.cached_tokens(tokens)
        return cached * self.trust + (_whole_blocks(tokens) * BLOCK_SIZE - cached) * self.unpromised

    @property
    def requests(self) -> Floats:
        """In flight."""
        return self.waiting + self.decoding

    def prefill_s(self, tokens: int, cached: Floats) -> Floats:
        """CostModel.prefill_s on each of them: alone on an idle replica."""
        uncached = tokens - cached
        steps = np.maximum(1.0, uncached / self.step_tokens)
        return steps * self.c0 + self.c_lin * uncached + self.c_att * uncached * (tokens - uncached / 2)

    def rendezvous(self, key: int, among: Mask | None = None) -> int:
        """Highest random weight (Thaler and Ravishankar 1998): gateways that see the same candidates pick the same one,
        whatever their order. Returns its place."""
        weights = mixed(self.id_hash ^ np.uint64(key))
        if among is not None:
            weights = np.where(among, weights, np.uint64(0))
        return int(weights.argmax())

    def first(self, among: Mask) -> int:
        """By id: where a published policy takes the first of its list. Returns its place."""
        return min(np.flatnonzero(among).tolist(), key=self.ids.__getitem__)

    def _usable(self, blocks: Floats, tokens: int) -> Floats:
        usable: Floats = np.minimum(blocks, _whole_blocks(tokens)) * BLOCK_SIZE
        usable -= usable % np.maximum(1.0, self.reuse_tokens)
        return usable


def size_class(tokens: int) -> int:
    return min(max(0, tokens.bit_length() - 6), SIZES - 1)


def size_classes(tokens: Floats) -> NDArray[np.int64]:
    """`size_class` of each."""
    exponents: NDArray[np.int64] = np.frexp(np.maximum(tokens, 1.0))[1] - 6
    return np.clip(exponents, 0, SIZES - 1)


def id_hash(replica: str) -> int:
    return xxhash.xxh3_64_intdigest(replica.encode())


def usable_tokens(blocks: float, tokens: int, reuse_tokens: float = 0.0) -> int:
    """`cached_tokens` of one replica."""
    usable = BLOCK_SIZE * min(int(blocks), _whole_blocks(tokens))
    return usable - usable % max(1, int(reuse_tokens))


def _whole_blocks(tokens: int) -> int:
    return (tokens - 1) // BLOCK_SIZE


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: every bit of the input moves half of the output."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
