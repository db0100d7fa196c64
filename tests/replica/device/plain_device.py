"""A device without a model, whose "KV" is numbers (see tests/replica/driver.py). It computes as late as it may, and a
freed page is spoilt in the order of the stream: what a step reads is checked, token by token."""

import random
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from replica.cache.block_pool import BlockPool
from replica.device.launch import needs_host
from replica.protocol.hashing import BLOCK_SIZE
from replica.sequence import Chunk, SamplingParams, Sequence
from replica.step import Sampled
from tests.replica.driver import kv_after, next_token

SPOILT = -1


class SpoilingPool(BlockPool):
    """Tells of every page that becomes free."""

    def __init__(self, num_pages: int, on_free: Callable[[int], None]) -> None:
        super().__init__(num_pages)
        self._on_free = on_free

    def free_from_sequence(self, pages: Iterable[int]) -> None:
        freed = list(pages)
        super().free_from_sequence(freed)
        for page in freed:
            self._on_free(page)

    def free_from_tree(self, page: int) -> None:
        super().free_from_tree(page)
        self._on_free(page)


class Stream:
    """Work of the device, done in order, and not before somebody waits for it or chance will have it."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._work: deque[Callable[[], None]] = deque()
        self._queued = 0
        self._done = 0

    def put(self, work: Callable[[], None]) -> int:
        self._work.append(work)
        self._queued += 1
        return self._queued

    def wait(self, number: int) -> None:
        while self._done < number:
            self._work.popleft()()
            self._done += 1

    def advance(self) -> None:
        self.wait(self._rng.choice([self._done, self._done, self._rng.randint(self._done, self._queued)]))


@dataclass(frozen=True, slots=True)
class _Row:
    sequence: Sequence
    start: int
    end: int
    pages: list[int]
    tokens: list[int]
    takes: bool
    samples: bool


@dataclass(slots=True)
class PlainLaunch:
    stream: Stream
    needs_host: bool
    number: int = 0
    sampled: dict[Sequence, int] = field(default_factory=dict)

    def result(self) -> list[tuple[Sequence, Sampled]]:
        self.stream.wait(self.number)
        return [
            (sequence, Sampled(chosen(token, sequence.params, sequence.num_output) if self.needs_host else token))
            for sequence, token in self.sampled.items()
        ]


def chosen(token: int, params: SamplingParams, num_output: int) -> int:
    """min_tokens, as this model understands it."""
    while num_output < params.min_tokens and token in params.stop_token_ids:
        token += 1
    return token


class PlainDevice:
    def __init__(self, num_pages: int, rng: random.Random) -> None:
        self.stream = Stream(rng)
        self.pages = [[SPOILT] * BLOCK_SIZE for _ in range(num_pages)]
        self.num_launches = 0
        self._last: PlainLaunch | None = None

    def free(self, page: int) -> None:
        def spoil() -> None:
            self.pages[page] = [SPOILT] * BLOCK_SIZE

        self.stream.put(spoil)

    def launch(self, chunks: SequenceOf[Chunk]) -> PlainLaunch:
        assert chunks
        rows = [_row(chunk) for chunk in chunks]
        previous = self._last
        launch = PlainLaunch(self.stream, any(row.samples and needs_host(row.sequence) for row in rows))
        launch.number = self.stream.put(lambda: self._compute(rows, previous, launch))
        self._last = launch
        self.num_launches += 1
        self.stream.advance()
        return launch

    def _compute(self, rows: list[_Row], previous: PlainLaunch | None, launch: PlainLaunch) -> None:
        chains = []
        for row in rows:
            if row.takes:
                assert previous is not None
                row.tokens[-1] = previous.sampled[row.sequence]
            chain, kv = [], row.sequence.namespace
            for token in row.tokens:
                kv = kv_after(kv, token)
                chain.append(kv)
            chains.append(chain)
            for position in range(row.start, row.end):
                self.pages[row.pages[position // BLOCK_SIZE]][position % BLOCK_SIZE] = chain[position]
        for row, chain in zip(rows, chains, strict=True):
            for index, start in enumerate(range(0, row.end, BLOCK_SIZE)):
                expected = chain[start : start + BLOCK_SIZE]
                assert self.pages[row.pages[index]][: len(expected)] == expected, "freed, or somebody else's"
            if row.samples:
                launch.sampled[row.sequence] = next_token(chain[-1])


def _row(chunk: Chunk) -> _Row:
    sequence = chunk.sequence
    takes = chunk.samples and sequence.num_pending == 1
    assert takes or chunk.end <= len(sequence.tokens) - sequence.num_pending
    pages, tokens = sequence.pages[: -(-chunk.end // BLOCK_SIZE)], sequence.tokens[: chunk.end]
    assert not (takes and needs_host(sequence)), "the host doesn't know what to choose by"
    return _Row(sequence, chunk.start, chunk.end, pages, tokens, takes, chunk.samples)
