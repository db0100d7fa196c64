"""What the next step computes. Pure: no clock, no tensors, so that the simulator runs this very code.

Decodes come first, a token each; what is left of the step's budget goes to prefill chunks, so both share a batch. Of
all that has tokens to prefill, begun or waiting, the most urgent goes first: see replica/urgency.py, also for the
bound on everybody's wait. Where pages run out, the least urgent running sequence is preempted: its pages go back and it
is computed anew later, mostly from the cache. The same happens to a running sequence that keeps one of higher priority
waiting, for pages or for a place among those running.

Deferral: a waiting sequence whose first uncached block is being computed by a running one stays in the queue until that
block is in the tree, and lends its place to the one it waits for. So of 50 agents that arrive with the same system
prompt one prefills it.
"""

from bisect import insort
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import chain

from replica.backlog import Backlog
from replica.cache.manager import KVCache
from replica.config import Order
from replica.protocol.hashing import BLOCK_SIZE
from replica.sequence import Batch, Chunk, Sequence, SequenceState
from replica.urgency import Urgency

_WINDOW = 64
"""Waiting sequences that are compared: of the highest priority, oldest first. Each costs about 1 µs a step."""

_TAIL_SHARE = 16
"""A prompt's last tokens join the chunk before them if they are at most this part of a step's budget: in a step of
their own the first token would wait for everything else that is in it. A prompt of 1,025 tokens is such a case."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    max_step_tokens: int
    """Exceeded by a sixteenth at most, where that finishes a prompt."""
    max_running: int
    order: Order = Order.SHORTEST


class Scheduler:
    def __init__(self, cache: KVCache, limits: SchedulerLimits) -> None:
        self._cache = cache
        self._limits = limits
        self._urgency = Urgency(limits.order, limits.max_step_tokens)
        self._backlog = Backlog()
        self._arrivals = 0
        # Most urgent first, by `Urgency.place`.
        self._waiting: list[Sequence] = []
        # In order of admission.
        self._running: list[Sequence] = []
        # Prompt blocks that a running sequence has undertaken to compute.
        self._claims: dict[int, Sequence] = {}

    @property
    def waiting(self) -> SequenceOf[Sequence]:
        return self._waiting

    @property
    def running(self) -> SequenceOf[Sequence]:
        return self._running

    @property
    def _running_are_full(self) -> bool:
        return any(sequence.is_full for sequence in self._running)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, sequence: Sequence) -> None:
        assert sequence.state is SequenceState.WAITING and sequence.arrival == 0
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self._wait(sequence)

    def schedule(self) -> Batch:
        """The chunks of the next step, with pages reserved for them. Empty only where nothing has work, where all that
        had something to compute was preempted, or where all that is left waits for its last token from the device."""
        displaced = self._make_way()
        decodes, preempted = self._decode()
        preempted = displaced + preempted
        budget = self._limits.max_step_tokens - len(decodes)
        prefills, deferred = self._prefill(budget, may_admit=not preempted)
        assert decodes or prefills or preempted or not self.has_work or self._running_are_full
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
        if sequence.state is SequenceState.RUNNING:
            self._running.remove(sequence)
        elif sequence.state is SequenceState.WAITING and sequence.arrival > 0:
            self._waiting.remove(sequence)
        self._drop_claims(sequence)
        self._backlog.drop(sequence)
        self._cache.release(sequence)
        sequence.state = SequenceState.FINISHED

    def preempt(self, sequence: Sequence) -> None:
        """Takes a running sequence's pages; it goes on later. Its tokens stay, so nothing that was streamed is lost or
        said twice. Not between `schedule` and `commit`."""
        assert sequence.state is SequenceState.RUNNING
        self._running.remove(sequence)
        self._drop_claims(sequence)
        self._cache.release(sequence)
        sequence.state = SequenceState.WAITING
        sequence.num_preemptions += 1
        self._wait(sequence)

    def pending_tokens(self) -> int:
        """Prompt tokens still to be computed for all sequences, a block that several wait for counted once."""
        for sequence in chain(self._running, self._waiting):
            if sequence.is_decoding:
                self._backlog.drop(sequence)
            else:
                self._backlog.update(sequence, sequence.num_computed or self._cache.match(sequence))
        return self._backlog.num_tokens

    def _wait(self, sequence: Sequence) -> None:
        insort(self._waiting, sequence, key=self._urgency.place)

    def _make_way(self) -> list[Sequence]:
        """Admits the most urgent waiting sequence in the place of running ones of lower priority, and returns them."""
        if not self._waiting:
            return []
        urgent = self._waiting[0]
        victims = [
            running
            for running in self._running
            if running.priority > urgent.priority and not self._urgency.is_due(running)
        ]
        if not victims or self._leader(urgent, self._cache.match(urgent)) is not None:
            return []
        # At most what could come free: no place is taken where it can't be enough.
        pages = self._cache.num_free + self._cache.num_evictable + sum(len(victim.pages) for victim in victims)
        if pages * BLOCK_SIZE < len(urgent.tokens) - self._cache.match(urgent):
            return []
        victims.sort(key=self._urgency.place)
        preempted: list[Sequence] = []
        while not self._admit(urgent) and victims:
            preempted.append(victims.pop())
            self.preempt(preempted[-1])
        return preempted

    def _decode(self) -> tuple[list[Chunk], list[Sequence]]:
        """A token of each running sequence that lacks no more than that, and who was preempted for their pages."""
        chunks: list[Chunk] = []
        preempted: list[Sequence] = []
        place = self._urgency.place
        # The most urgent first, so that whoever is preempted has no chunk in this step yet.
        lacking = (running for running in self._running if running.num_uncomputed == 1 and not running.is_full)
        for sequence in sorted(lacking, key=place):
            if len(chunks) == self._limits.max_step_tokens or sequence.state is not SequenceState.RUNNING:
                break
            while not self._cache.reserve(sequence, len(sequence.tokens)):
                victim = max(self._running, key=place)
                self.preempt(victim)
                preempted.append(victim)
                if victim is sequence:
                    return chunks, preempted
            chunks.append(Chunk(sequence, sequence.num_computed, 1))
        return chunks, preempted

    def _prefill(self, budget: int, may_admit: bool) -> tuple[list[Chunk], int]:
        """Chunks of prompts, in order of urgency, and how many sequences are deferred."""
        chunks: dict[Sequence, Chunk] = {}
        deferred = 0
        for matched, sequence in self._in_order_of_prefill():
            if budget <= 0:
                break
            if sequence.state is SequenceState.WAITING:
                if not may_admit:
                    continue
                leader = self._leader(sequence, matched)
                if leader is not None:
                    deferred += 1
                    if leader.num_uncomputed == 1:
                        # Its last token is among the decodes of this step.
                        continue
                    sequence = leader
                elif not self._admit(sequence):
                    # Nobody less urgent takes the pages or the place that it waits for.
                    may_admit = False
                    continue
            if sequence not in chunks:
                count = self._chunk_tokens(sequence, budget)
                chunks[sequence] = Chunk(sequence, sequence.num_computed, count)
                budget -= count
        return list(chunks.values()), deferred

    def _in_order_of_prefill(self) -> list[tuple[int, Sequence]]:
        """Prompts under way and the most urgent waiting sequences, each with its tokens computed or in the cache."""
        prompts = [(running.num_computed, running) for running in self._running if running.num_uncomputed > 1]
        prompts += [(self._cache.match(sequence), sequence) for sequence in self._waiting[:_WINDOW]]
        rank = self._urgency.rank
        return sorted(prompts, key=lambda entry: rank(entry[1], entry[0]))

    def _leader(self, sequence: Sequence, matched: int) -> Sequence | None:
        """Who is computing the block that a waiting sequence needs next. Asked anew for each: what was admitted before
        it may have undertaken to compute its prefix."""
        block = matched // BLOCK_SIZE
        # The last token is never taken from the cache, so a block that holds it is nothing to wait for.
        usable = min(len(sequence.hashes), (len(sequence.tokens) - 1) // BLOCK_SIZE)
        if block >= usable or sequence.wants_prompt_logprobs:
            return None
        return self._claims.get(sequence.hashes[block])

    def _admit(self, sequence: Sequence) -> bool:
        """False, and nothing changed, where there is no place or no pages for it."""
        if len(self._running) >= self._limits.max_running:
            return False
        cached = self._cache.admit(sequence)
        # Room for the whole prompt, though only a chunk is computed now: half a prompt is of use to nobody.
        if not self._cache.reserve(sequence, len(sequence.tokens)):
            self._cache.release(sequence)
            return False
        if sequence.num_preemptions == 0:
            sequence.num_cached = cached
        prefilling = [running for running in self._running if running.num_uncomputed > 1]
        if self._urgency.charge(sequence, chain(prefilling, self._waiting)):
            self._waiting.sort(key=self._urgency.place)
        self._waiting.remove(sequence)
        sequence.state = SequenceState.RUNNING
        self._running.append(sequence)
        self._claim(sequence)
        return True

    def _chunk_tokens(self, sequence: Sequence, budget: int) -> int:
        """May exceed the budget by a tail; then nothing more joins the step."""
        uncomputed = sequence.num_uncomputed
        tail = uncomputed - budget
        return uncomputed if tail <= self._limits.max_step_tokens // _TAIL_SHARE else budget

    def _claim(self, sequence: Sequence) -> None:
        sequence.claimed = sequence.hashes[sequence.num_computed // BLOCK_SIZE :]
        for block in sequence.claimed:
            self._claims.setdefault(block, sequence)

    def _drop_claims(self, sequence: Sequence) -> None:
        for block in sequence.claimed:
            if self._claims.get(block) is sequence:
                del self._claims[block]
        sequence.claimed = []
