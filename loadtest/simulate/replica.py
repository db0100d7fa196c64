"""A replica in virtual time: the real scheduler and the real cache, steps that last as long as a profile says.

It is advanced when somebody looks at it or when it has something to tell. A stretch of steps that only decode is
passed over in one go: each step lasts as long as the one before, so all there is to know is when the next answer ends.

One token may stand for several real ones (`stride`). Then an answer's next token is due every `stride` steps, and its
sequence lacks nothing meanwhile, so that the scheduler passes it over; steps stay real ones.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from loadtest.simulate.prompts import NAMESPACE, Request
from replica.cache.manager import KVCache
from replica.config import Order
from replica.profiles import Profile
from replica.protocol.hashing import BLOCK_SIZE
from replica.protocol.records import Delta, Load, xor_root
from replica.scheduler import Scheduler, SchedulerLimits
from replica.sequence import Batch, SamplingParams, Sequence

_NOTHING = Batch(())
_ROUNDING = 1e-9
"""Of a step: what sums of seconds may be off by."""


class _Prompt(Sequence):
    """A sequence whose packed tokens and hashes are known already."""

    __slots__ = ()

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)


@dataclass(slots=True, eq=False)
class Job:
    """A request on this replica."""

    request: Request
    sequence: Sequence
    left: int
    """Real tokens of the answer still to come, while it isn't decoding."""
    ends_at_step: int = 0
    """The step that yields its last token, while it is decoding."""
    due_at_step: int = 0
    """The step that yields the next token of its sequence, or its last."""
    has_first: bool = False


@dataclass(slots=True)
class Told:
    """What a replica has to tell as of now."""

    first: list[Job] = field(default_factory=list)
    """Jobs that have their first token."""
    done: list[Job] = field(default_factory=list)


class SimReplica:
    def __init__(
        self, name: str, epoch: str, profile: Profile, stride: int, order: Order, make_cache: Callable[[int], KVCache]
    ) -> None:
        """`profile` in the workload's tokens."""
        self.name = name
        self.epoch = epoch
        self.profile = profile
        self.cache = make_cache(profile.kv_tokens // BLOCK_SIZE)
        self.scheduler = Scheduler(self.cache, SchedulerLimits(profile.max_step_tokens, profile.max_running, order))
        self.told = Told()
        self.jobs: dict[Sequence, Job] = {}
        self.steps = 0
        self.busy_s = 0.0
        self.computed_tokens = 0
        """Of prompts."""
        self.preemptions = 0
        self._stride = stride
        self._decoding: dict[Job, None] = {}
        self._batch: Batch | None = None
        self._began = 0.0
        self._end = 0.0
        """Of the step under way, whose batch that is."""
        self._steady = False
        self._since = 0.0
        """Up to where the steps of a steady stretch are counted, and how long each lasts."""
        self._pace = 0.0
        self._first_end = 0
        """The step at which the next answer ends, in a steady stretch."""
        self._seq = 0
        self._held = 0
        self._root = 0

    @property
    def seq(self) -> int:
        return self._seq

    @property
    def step_began_at(self) -> float:
        """Of the step under way: of what it computes nothing counts as done yet."""
        return self._began if self._batch is not None else float("inf")

    def next_at(self) -> float:
        """When it will have something to tell, if nothing comes."""
        if self._batch is not None:
            return self._end
        return self._since + self._pace * (self._first_end - self.steps) if self._steady else float("inf")

    def add(self, request: Request, now: float) -> Job:
        self.advance(now)
        packed = request.packed()
        sequence = _Prompt(
            str(request.number),
            memoryview(packed).cast("I").tolist(),
            SamplingParams(-(-request.output // self._stride)),
            NAMESPACE,
            packed=packed,
            hashes=request.hashes,
        )
        job = self.jobs[sequence] = Job(request, sequence, request.output)
        self.scheduler.add(sequence)
        if self._steady:
            self._interrupt(now)
        if self._batch is None:
            self._begin(now)
        return job

    def advance(self, now: float) -> None:
        """All steps that end by now."""
        while True:
            if self._batch is not None:
                if self._end > now:
                    return
                self._complete()
            elif self._steady:
                if self._whole_steps(now) < self._first_end - self.steps:
                    return
                self._pass(self._first_end - self.steps)
                self._steady = False
                self._end = self._since
                self._settle()
            else:
                return
            self._begin(self._end)

    def load(self, now: float) -> Load:
        """As `Engine.load`."""
        self.advance(now)
        if self._steady:
            self._pass(self._whole_steps(now))
            self._settle()
        scheduler, cache = self.scheduler, self.cache
        return Load(
            waiting=len(scheduler.waiting),
            running=len(scheduler.running),
            decoding=len(self._decoding),
            pending_tokens=scheduler.pending_tokens(),
            free_blocks=cache.num_free,
            evictable_blocks=cache.num_evictable,
            total_blocks=cache.num_pages,
        )

    def take_told(self) -> Told:
        told, self.told = self.told, Told()
        return told

    def take_delta(self, even_if_empty: bool = False) -> Delta | None:
        """What the cache gained and lost since the last one, as the digest says it."""
        events = self.cache.take_events()
        if not (events.added or events.removed or even_if_empty):
            return None
        self._seq += 1
        self._held += len(events.added) - len(events.removed)
        self._root ^= xor_root(events.added) ^ xor_root(events.removed)
        return Delta(self.name, self.epoch, self._seq, events.added, events.removed, self._held, self._root)

    def check(self) -> None:
        """Raises AssertionError where the cache's books don't add up."""
        self.cache.check_integrity([*self.scheduler.running, *self.scheduler.waiting])

    def _begin(self, now: float) -> None:
        """The next step, or a stretch of them, or nothing."""
        if not self.scheduler.has_work:
            return
        if self._may_go_steady():
            self._steady = True
            self._since = now
            self._pace = self.profile.step_s(0, 0.0, len(self._decoding), self._kv_use())
            self._first_end = min(job.ends_at_step for job in self._decoding)
            return
        self._batch = self.scheduler.schedule() if self._something_to_schedule() else _NOTHING
        for sequence in self._batch.preempted:
            self.preemptions += 1
            job = self.jobs[sequence]
            if job in self._decoding:
                del self._decoding[job]
                job.left = job.ends_at_step - self.steps
        seconds = self._step_s(self._batch)
        self.busy_s += seconds
        self._began, self._end = now, now + seconds

    def _may_go_steady(self) -> bool:
        """Only decodes, and pages for all of them until the first answer ends, so that nothing needs the scheduler."""
        decoding, scheduler = self._decoding, self.scheduler
        if scheduler.waiting or len(decoding) < len(scheduler.running):
            return False
        steps = min(job.ends_at_step for job in decoding) - self.steps
        pages = len(decoding) * (2 + steps // (BLOCK_SIZE * self._stride))
        return pages <= self.cache.num_free + self.cache.num_evictable

    def _something_to_schedule(self) -> bool:
        """The scheduler may not be asked where all that runs waits for its next token to become due, and what waits
        can't be admitted."""
        running, waiting = self.scheduler.running, self.scheduler.waiting
        if self._stride == 1 or any(sequence.num_uncomputed for sequence in running):
            return True
        room = (self.cache.num_free + self.cache.num_evictable) * BLOCK_SIZE
        has_place = bool(waiting) and len(running) < self.profile.max_running
        return has_place and all(len(sequence.tokens) <= room for sequence in waiting)

    def _step_s(self, batch: Batch) -> float:
        tokens, attention = 0, 0.0
        for chunk in batch.chunks:
            if self.jobs[chunk.sequence] not in self._decoding:
                tokens += chunk.count
                attention += chunk.count * (chunk.end - chunk.count / 2)
        self.computed_tokens += tokens
        return self.profile.step_s(tokens, attention, len(self._decoding), self._kv_use())

    def _kv_use(self) -> float:
        cache = self.cache
        return 1 - (cache.num_free + cache.num_evictable) / cache.num_pages

    def _complete(self) -> None:
        """The step under way is over."""
        assert self._batch is not None
        batch, self._batch = self._batch, None
        self.scheduler.commit(batch)
        self.steps += 1
        self._settle()
        for chunk in batch.chunks:
            job = self.jobs.get(chunk.sequence)
            if job is not None and job not in self._decoding and chunk.samples:
                self._sampled(job)

    def _sampled(self, job: Job) -> None:
        """A prompt is all computed, perhaps for the second time, and has a token more."""
        if not job.has_first:
            job.has_first = True
            self.told.first.append(job)
        job.left -= 1
        job.ends_at_step = self.steps + job.left
        if job.left == 0:
            self._finish(job)
        else:
            self._decoding[job] = None
            self._catch_up(job)

    def _settle(self) -> None:
        """Brings all decoding sequences to where they are after `steps`, and ends those that are done."""
        steps = self.steps
        due = [job for job in self._decoding if job.due_at_step <= steps]
        for job in due:
            self._catch_up(job)
        for job in due:
            if job.ends_at_step <= steps:
                del self._decoding[job]
                self._finish(job)

    def _catch_up(self, job: Job) -> None:
        """Gives the sequence the tokens that are due, with the KV of all but the last."""
        sequence = job.sequence
        real = job.request.output - (job.ends_at_step - self.steps)
        given = -(-real // self._stride)
        job.due_at_step = min(job.ends_at_step, self.steps + given * self._stride + 1 - real)
        length = len(sequence.prompt) + given
        count = length - len(sequence.tokens)
        if count <= 0:
            return
        for token in job.request.answer(len(sequence.tokens), count):
            sequence.append(token)
        if sequence.num_computed < length - 1:
            has_room = self.cache.reserve(sequence, length - 1)
            assert has_room, "a steady stretch was begun without room for it"
            sequence.num_computed = length - 1
            self.cache.commit(sequence)

    def _finish(self, job: Job) -> None:
        self.scheduler.finish(job.sequence)
        del self.jobs[job.sequence]
        self.told.done.append(job)

    def _whole_steps(self, now: float) -> int:
        return int((now - self._since) / self._pace + _ROUNDING)

    def _pass(self, steps: int) -> None:
        self.steps += steps
        self._since += steps * self._pace
        self.busy_s += steps * self._pace

    def _interrupt(self, now: float) -> None:
        """Somebody has come: the step under way is the last of the stretch."""
        self._pass(self._whole_steps(now))
        self._settle()
        self._steady = False
        if now > self._since:
            self._batch = _NOTHING
            self._end = self._since + self._pace
            self.busy_s += self._pace
