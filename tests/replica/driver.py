"""Runs the scheduler and the cache without a model, but with KV of its own: what a step would read is checked."""

from collections.abc import Callable

from replica.cache.manager import CacheManager, KVCache
from replica.config import Order
from replica.protocol.hashing import BLOCK_SIZE, Fork
from replica.scheduler import Scheduler, SchedulerLimits
from replica.sequence import Batch, Chunk, SamplingParams, Sequence

_MASK = 2**61 - 1


def kv_after(kv: int, token: int) -> int:
    """The "KV" of a token: a number that depends on all tokens up to it and on the namespace."""
    return (kv * 1_000_003 + token + 1) & _MASK


def next_token(kv: int) -> int:
    return kv % 50


def expected_answer(prompt: list[int], namespace: int, max_tokens: int) -> list[int]:
    """What any schedule must come to."""
    kv = namespace
    for token in prompt:
        kv = kv_after(kv, token)
    answer = []
    for _ in range(max_tokens):
        answer.append(next_token(kv))
        kv = kv_after(kv, answer[-1])
    return answer


class Driver:
    def __init__(
        self,
        num_pages: int = 64,
        max_step_tokens: int = 64,
        max_running: int = 8,
        order: Order = Order.SHORTEST,
        new_cache: Callable[[int], KVCache] = CacheManager,
    ) -> None:
        self.cache = new_cache(num_pages)
        self.scheduler = Scheduler(self.cache, SchedulerLimits(max_step_tokens, max_running, order))
        self.max_step_tokens = max_step_tokens
        self.max_running = max_running
        self._pages = [[0] * BLOCK_SIZE for _ in range(num_pages)]
        self._kv: dict[Sequence, list[int]] = {}

    def add(
        self,
        prompt: list[int],
        max_tokens: int = 4,
        name: str = "s",
        priority: int = 0,
        namespace: int = 0,
        fork: Fork | None = None,
    ) -> Sequence:
        sequence = Sequence(name, prompt, SamplingParams(max_tokens), namespace, priority, fork)
        self._kv[sequence] = []
        self.scheduler.add(sequence)
        return sequence

    def step(self, check: bool = True) -> Batch:
        batch = self.scheduler.schedule()
        assert batch.num_tokens <= self.max_step_tokens * 17 // 16
        assert len(self.scheduler.running) <= self.max_running
        computed = {chunk.sequence for chunk in batch.chunks}
        assert len(computed) == len(batch.chunks)
        assert not computed & set(batch.preempted)
        for chunk in batch.chunks:
            self._forward(chunk)
        # Pages may be shared by now: whoever reads them in this step must find what it would have written.
        for chunk in batch.chunks:
            self._read(chunk)
        sampled = [chunk.sequence for chunk in batch.chunks if chunk.samples]
        self.scheduler.commit(batch)
        for sequence in sampled:
            sequence.append(next_token(self._kv[sequence][len(sequence.tokens) - 1]))
            if sequence.finish_reason():
                self.finish(sequence)
        if check:
            self.check()
        return batch

    def finish(self, sequence: Sequence) -> None:
        self.scheduler.finish(sequence)
        self._kv.pop(sequence, None)

    def check(self) -> None:
        self.cache.check_integrity([*self.scheduler.running, *self.scheduler.waiting])

    def check_idle(self) -> None:
        """Nothing is left of anybody: all pages are free or in the tree, and nothing is locked or claimed."""
        assert not self.scheduler.has_work
        self.check()
        assert self.cache.num_free + self.cache.num_evictable == self.cache.num_pages
        assert self.scheduler._claims == {}
        assert self.scheduler._backlog._entries == {} == self.scheduler._backlog._needs
        assert self.scheduler.pending_tokens() == 0
        assert self._kv == {}

    def run(self, limit: int = 10_000) -> int:
        steps = 0
        while self.scheduler.has_work:
            self.step()
            steps += 1
            assert steps < limit
        return steps

    def _forward(self, chunk: Chunk) -> None:
        sequence, kv = chunk.sequence, self._kv[chunk.sequence]
        for position in range(len(kv), chunk.end):
            kv.append(kv_after(kv[-1] if kv else sequence.namespace, sequence.tokens[position]))
        for position in range(chunk.start, chunk.end):
            self._pages[sequence.pages[position // BLOCK_SIZE]][position % BLOCK_SIZE] = kv[position]

    def _read(self, chunk: Chunk) -> None:
        kv = self._kv[chunk.sequence]
        for index, start in enumerate(range(0, chunk.end, BLOCK_SIZE)):
            end = min(start + BLOCK_SIZE, chunk.end)
            assert self._pages[chunk.sequence.pages[index]][: end - start] == kv[start:end], "somebody else's KV"
