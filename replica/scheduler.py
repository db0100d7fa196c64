"""What the next step computes. Pure: no clock, no tensors, so that the simulator runs this very code.

Decodes come first, a token each; what is left of the step's budget goes to prefill chunks, so both share a batch. Of
all that has tokens to prefill, begun or waiting, the one with the fewest left goes first: a question about a context
that is cached is answered before the next long prompt goes on. Nobody is overtaken for ever: see
`_MAX_OVERTAKEN_STEPS`. Where pages run out the newest running sequence is preempted: its pages go back and it is
computed anew later, mostly from the cache.

Deferral: a waiting sequence whose first uncached block is being computed by a running one stays in the queue until that
block is in the tree. So of 50 agents that arrive with the same system prompt one prefills it.
"""

from collections import deque
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import islice, takewhile

from replica.cache.manager import KVCache
from replica.protocol.hashing import BLOCK_SIZE
from replica.sequence import Batch, Chunk, Sequence, SequenceState

_WINDOW = 64
"""Waiting sequences that are compared, oldest first; each costs a match in the tree, about 40 µs for 1,000 tokens."""

_TAIL_SHARE = 16
"""A prompt's last tokens join the chunk before them if they are at most this part of a step's budget: in a step of
their own the first token would wait for everything else that is in it. A prompt of 1,025 tokens is such a case."""

_MAX_OVERTAKEN_STEPS = 8
"""A sequence lets others by for as many tokens as this many full steps compute; then it is next."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    max_step_tokens: int
    """Exceeded by a sixteenth at most, where that finishes a prompt."""
    max_running: int


class Scheduler:
    def __init__(self, cache: KVCache, limits: SchedulerLimits) -> None:
        self._cache = cache
        self._limits = limits
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        # Prompt blocks that running sequences have undertaken to compute, by how many of them.
        self._claims: dict[int, int] = {}

    @property
    def waiting(self) -> SequenceOf[Sequence]:
        return self._waiting

    @property
    def running(self) -> SequenceOf[Sequence]:
        return self._running

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, sequence: Sequence) -> None:
        assert sequence.state is SequenceState.WAITING
        self._waiting.append(sequence)

    def schedule(self) -> Batch:
        """The chunks of the next step, with pages reserved for them. Empty only where nothing has work."""
        decodes, preempted = self._decode()
        budget = self._limits.max_step_tokens - len(decodes)
        prefills, deferred = self._prefill(budget, may_admit=not preempted)
        assert decodes or prefills or not self.has_work
        return Batch((*decodes, *prefills), tuple(preempted), deferred)

    def commit(self, batch: Batch) -> None:
        """The forward of `batch` is done: its KV counts as computed, its whole pages go into the tree."""
        for chunk in batch.chunks:
            sequence = chunk.sequence
            assert sequence.num_computed == chunk.start
            sequence.num_computed = chunk.end
            self._cache.commit(sequence)
            if sequence.claimed and sequence.num_computed // BLOCK_SIZE >= len(sequence.hashes):
                self._drop_claims(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Also aborts, in any state; a no-op for a sequence that is finished."""
        if sequence.state is SequenceState.FINISHED:
            return
        if sequence.state is SequenceState.RUNNING:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._drop_claims(sequence)
        self._cache.release(sequence)
        sequence.state = SequenceState.FINISHED

    def pending_tokens(self) -> int:
        """Prompt tokens still to be computed for all sequences, a block that several wait for counted once."""
        blocks: set[int] = set()
        tails = 0
        for sequence in (*self._running, *self._waiting):
            if sequence.is_decoding:
                continue
            start = sequence.num_computed or self._cache.match(sequence)
            blocks.update(sequence.hashes[start // BLOCK_SIZE :])
            tails += len(sequence.tokens) - max(start, len(sequence.hashes) * BLOCK_SIZE)
        return len(blocks) * BLOCK_SIZE + tails

    def _decode(self) -> tuple[list[Chunk], list[Sequence]]:
        """A token of each running sequence that lacks no more than that, and who was preempted for their pages."""
        chunks: list[Chunk] = []
        preempted: list[Sequence] = []
        for sequence in [running for running in self._running if running.num_uncomputed == 1]:
            if len(chunks) == self._limits.max_step_tokens or sequence.state is not SequenceState.RUNNING:
                break
            while not self._cache.reserve(sequence, len(sequence.tokens)):
                victim = self._running[-1]
                self._preempt(victim)
                preempted.append(victim)
                if victim is sequence:
                    return chunks, preempted
            chunks.append(Chunk(sequence, sequence.num_computed, 1))
        return chunks, preempted

    def _prefill(self, budget: int, may_admit: bool) -> tuple[list[Chunk], int]:
        """Chunks of prompts, in order of urgency, and how many sequences are deferred."""
        chunks: list[Chunk] = []
        deferred = 0
        for matched, sequence in self._in_order_of_prefill():
            if budget <= 0:
                break
            if sequence.state is SequenceState.WAITING:
                may_admit = may_admit and len(self._running) < self._limits.max_running
                if not may_admit:
                    continue
                if self._is_deferred(sequence, matched):
                    deferred += 1
                    continue
                may_admit = self._admit(sequence)
                if not may_admit:
                    continue
            count = self._chunk_tokens(sequence, budget)
            chunks.append(Chunk(sequence, sequence.num_computed, count))
            budget -= count
        return chunks, deferred

    def _in_order_of_prefill(self) -> list[tuple[int, Sequence]]:
        """Prompts under way and the oldest waiting sequences, each with its tokens computed or in the cache."""
        prompts = [(running.num_computed, running) for running in self._running if running.num_uncomputed > 1]
        prompts += [(self._cache.match(sequence), sequence) for sequence in islice(self._waiting, _WINDOW)]
        patience = _MAX_OVERTAKEN_STEPS * self._limits.max_step_tokens

        def rank(entry: tuple[int, Sequence]) -> int:
            done, sequence = entry
            return 0 if sequence.overtaken_tokens >= patience else len(sequence.tokens) - done

        return sorted(prompts, key=rank)

    def _is_deferred(self, sequence: Sequence, matched: int) -> bool:
        """Asked anew for each: what was admitted before it may have undertaken to compute its prefix."""
        block = matched // BLOCK_SIZE
        # The last token is never taken from the cache, so a block that holds it is nothing to wait for.
        usable = min(len(sequence.hashes), (len(sequence.tokens) - 1) // BLOCK_SIZE)
        return block < usable and sequence.hashes[block] in self._claims

    def _admit(self, sequence: Sequence) -> bool:
        """False, and nothing changed, where there are no pages for it."""
        cached = self._cache.admit(sequence)
        # Room for the whole prompt, though only a chunk is computed now: half a prompt is of use to nobody.
        if not self._cache.reserve(sequence, len(sequence.tokens)):
            self._cache.release(sequence)
            return False
        if sequence.num_preemptions == 0:
            sequence.num_cached = cached
        self._count_overtaking(sequence)
        self._waiting.remove(sequence)
        sequence.state = SequenceState.RUNNING
        self._running.append(sequence)
        self._claim(sequence)
        return True

    def _count_overtaking(self, sequence: Sequence) -> None:
        """Against all older ones that still have tokens to prefill."""
        older = [running for running in self._running if running.num_uncomputed > 1]
        older += takewhile(lambda waiting: waiting is not sequence, self._waiting)
        for overtaken in older:
            overtaken.overtaken_tokens += sequence.num_uncomputed

    def _chunk_tokens(self, sequence: Sequence, budget: int) -> int:
        """May exceed the budget by a tail; then nothing more joins the step."""
        uncomputed = sequence.num_uncomputed
        tail = uncomputed - budget
        return uncomputed if tail <= self._limits.max_step_tokens // _TAIL_SHARE else budget

    def _preempt(self, sequence: Sequence) -> None:
        """Frees its pages; the tokens stay, so nothing that was streamed is lost or said twice."""
        self._running.remove(sequence)
        self._drop_claims(sequence)
        self._cache.release(sequence)
        sequence.state = SequenceState.WAITING
        sequence.num_preemptions += 1
        self._waiting.appendleft(sequence)

    def _claim(self, sequence: Sequence) -> None:
        sequence.claimed = sequence.hashes[sequence.num_computed // BLOCK_SIZE :]
        for block in sequence.claimed:
            self._claims[block] = self._claims.get(block, 0) + 1

    def _drop_claims(self, sequence: Sequence) -> None:
        for block in sequence.claimed:
            self._claims[block] -= 1
            if self._claims[block] == 0:
                del self._claims[block]
        sequence.claimed = []
