"""The replicas that may take a request, as columns of numbers: a policy computes over all of them at once.

A fleet of 1,000 replicas must be decided over within a millisecond, and Python takes that long to look at each of them
once. Arrays are this module's to make and nobody's to write to.
"""

from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from replica.protocol.hashing import BLOCK_SIZE

if TYPE_CHECKING:
    from gateway.routing.native.library import Library

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

SIZES = 12
"""Classes of requests by what they have uncached: under 64 tokens, under 128, ..., from 65,536 on."""


class Column:
    """A row of `Candidates.numbers`, by the attribute's name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._row = ROWS.index(name)

    def __get__(self, candidates: "Candidates", owner: type | None = None) -> Floats:
        row: Floats = candidates.numbers[self._row]
        return row


FOR_THE_PROMPT = ("queue_tokens", "held_blocks", "matched_blocks")
"""What is worked out for each decision."""

COLUMNS = (
    *("waiting", "decoding", "stay_s", "active_blocks", "free_blocks", "total_blocks", "max_running"),
    *("trust", "unpromised", "reuse", "reuse_tokens"),
    *("c0", "c_lin", "c_att", "c_dec", "step_tokens", "shortest_first"),
)
"""What is known of a replica before a prompt is looked at; see Candidates for what each is. What is written together
lies together: see fleet_table.py."""

SIZE_ROWS = ("size_tokens", "size_counts")

ROWS = (
    *FOR_THE_PROMPT,
    *COLUMNS,
    *(name if place == 0 else f"{name}_{place}" for name in SIZE_ROWS for place in range(SIZES)),
    "id_hash",
)
"""Of `Candidates.numbers`, in order; native code goes by it too. Names are those of the attributes."""

_MATCHED, _HELD, _REUSE_TOKENS = map(ROWS.index, ("matched_blocks", "held_blocks", "reuse_tokens"))
_SIZE_TOKENS = ROWS.index("size_tokens")
_SIZE_COUNTS = ROWS.index("size_counts")
_ZERO = array("d", (0.0,))


class Figures(NamedTuple):
    """Of all candidates together."""

    deepest: int
    """The most `matched_blocks`."""
    owners: int
    """How many replicas have so many."""
    most_held: int
    """The most `held_blocks`."""
    queued: float
    """`queue_tokens` of all."""
    idle: int
    """How many have none."""
    tokens_per_s: float
    """That they prefill, in full steps beside their decodes."""


class Candidates:
    """A place for each replica in every column. All of them lie in one block of memory, a row a column, so that native
    code takes one pointer."""

    __slots__ = ("_figures", "_numbers", "address", "ids", "library", "memory")

    queue_tokens = Column()
    """Uncached prompt tokens ahead of a new request, dead-reckoned between load reports."""
    matched_blocks = Column()
    """Leading blocks of the prompt that the replica holds or is about to compute."""
    held_blocks = Column()
    """Those of them that it holds for certain."""
    waiting = Column()
    """Requests that have no first token yet."""
    decoding = Column()
    """Sequences that are being decoded."""
    active_blocks = Column()
    """KV blocks of sequences under way: neither free nor evictable."""
    free_blocks = Column()
    total_blocks = Column()
    """0 where the replica doesn't say."""
    max_running = Column()
    """Sequences that it computes at a time; 0 where it doesn't say."""
    stay_s = Column()
    """How long a request has been holding its KV blocks after its first token, of late; 0 where nothing is known."""
    trust = Column()
    """Of the cached tokens that its digest promises, the share that comes; 1 where nothing is known. See trust.py."""
    unpromised = Column()
    """Of those that nobody promises, the share that comes all the same; 0 where nothing is known."""
    reuse = Column()
    """Share of the replica's prompt tokens that its cache has been serving; 1 where nothing is known."""
    reuse_tokens = Column()
    """It reuses only multiples of so many; 0: any number."""
    c0 = Column()
    """Of the cost model, in seconds; see replica.protocol.records.CostModel."""
    c_lin = Column()
    c_att = Column()
    c_dec = Column()
    step_tokens = Column()
    shortest_first = Column()
    """Whether the replica prefills what has the fewest tokens left before the others; else 0: in order of arrival."""

    def __init__(
        self,
        ids: tuple[str, ...],
        memory: "array[float]",
        library: "Library | None",
        figures: Figures | None = None,
        address: int | None = None,
    ) -> None:
        """`memory`: ROWS of as many numbers as there are ids, one after the other. `library`: None where native code
        isn't to be used on it. `figures`, `address`: where they are known; the latter is the memory's."""
        self._figures = figures
        self.ids = ids
        self.memory = memory
        self.address = memory.buffer_info()[0] if address is None else address
        self.library = library
        self._numbers: Floats | None = None

    @classmethod
    def of(
        cls, ids: tuple[str, ...], id_hash: NDArray[np.uint64], library: "Library | None", **columns: Floats
    ) -> "Candidates":
        """By name; `size_tokens` and `size_counts` have a row a size, and what isn't given is 0."""
        made = cls(ids, _ZERO * (len(ROWS) * len(ids)), library)
        made.numbers[-1] = id_hash.view(np.float64)
        made._write(columns)
        return made

    def changed(self, **columns: Floats) -> "Candidates":
        """A copy with other numbers in these columns."""
        made = Candidates(self.ids, self.memory[:], self.library)
        made._write(columns)
        return made

    def _write(self, columns: Mapping[str, Floats]) -> None:
        for name, column in columns.items():
            row = ROWS.index(name)
            self.numbers[row : row + SIZES if name in SIZE_ROWS else row + 1] = column

    def blocks_at(self, place: int) -> tuple[float, float, float]:
        """`matched_blocks`, `held_blocks` and `reuse_tokens` of one replica."""
        memory, count = self.memory, len(self.ids)
        return memory[_MATCHED * count + place], memory[_HELD * count + place], memory[_REUSE_TOKENS * count + place]

    @property
    def numbers(self) -> Floats:
        """(ROWS, replicas)."""
        if self._numbers is None:
            self._numbers = np.ndarray((len(ROWS), len(self.ids)), np.float64, self.memory)
        return self._numbers

    @property
    def size_tokens(self) -> Floats:
        """(SIZES, replicas): the make-up of what waits, as far as requests are known one by one. It may exceed the
        queue: a request counts in full until it is done."""
        return self.numbers[_SIZE_TOKENS : _SIZE_TOKENS + SIZES]

    @property
    def size_counts(self) -> Floats:
        return self.numbers[_SIZE_COUNTS : _SIZE_COUNTS + SIZES]

    @property
    def id_hash(self) -> NDArray[np.uint64]:
        hashes: NDArray[np.uint64] = self.numbers[-1].view(np.uint64)
        return hashes

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def figures(self) -> Figures:
        if self._figures is None:
            deepest, queue = self.matched_blocks.max(), self.queue_tokens
            step_s = self.c0 + self.c_dec * self.decoding
            self._figures = Figures(
                int(deepest),
                int(np.count_nonzero(self.matched_blocks == deepest)),
                int(self.held_blocks.max()),
                float(queue.sum()),
                int(np.count_nonzero(queue == 0)),
                float((1 / np.maximum(1e-12, self.c_lin + step_s / np.maximum(1.0, self.step_tokens))).sum()),
            )
        return self._figures

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
    place = tokens.bit_length() - 6
    return 0 if place < 0 else place if place < SIZES else SIZES - 1


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
