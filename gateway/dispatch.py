"""One request to one replica, and to another where that fails before the client has seen anything."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, TypeVar

import orjson

from gateway.admission import Waiters
from gateway.config import Timeouts
from gateway.deadline import first_byte_within
from gateway.errors import NoReplica, ReplicaBusy, ReplicaDied, ReplicaFailed, ReplicaUnreachable, UpstreamError
from gateway.fleet import Incarnation, Lease
from gateway.hindsight import Hindsight
from gateway.hold.desk import FrontDesk
from gateway.hold.guest import Guest, Terms
from gateway.hold.reception import Reception
from gateway.http.client import Answer
from gateway.metrics import Metrics
from gateway.observer import Observer
from gateway.resume import Progress
from gateway.router import Considered, Router
from gateway.routing.base import Decision, RouteRequest
from gateway.traces import Attempt, Trace, Traces
from gateway.trust import Prediction
from gateway.upstream import RetryBudget, Upstream
from replica.protocol import headers
from replica.protocol.hashing import BLOCK_SIZE
from replica.protocol.records import Heartbeat

MAX_ATTEMPTS = 5
"""A prompt that fails wherever it goes must not visit a whole fleet."""

RESUME_WAIT_S = 0.75
"""For a replica that can go on with a stream, where there is none: then its client is told."""

_T = TypeVar("_T")


@dataclass(slots=True)
class Call:
    """A request, parsed and tokenised."""

    path: str
    payload: dict[str, Any]
    """What the replica gets, but for the model's name and the prompt."""
    token_ids: bytes
    """The prompt, by `TokenIds.json`: a list of ints takes eight times the memory, for as long as the stream lives."""
    as_text: Callable[[], dict[str, Any]] | None
    """The same for an engine that isn't ours: the prompt as the client sent it. None where there is no such engine, as
    it keeps the text for as long as the stream lives."""
    prompt: RouteRequest
    total_tokens: int
    """Prompt and the shortest answer that will do."""
    choices: int
    """Answers that the replica decodes side by side."""
    traced: bool
    trace: Trace
    terms: Terms = field(default_factory=Terms)
    progress: Progress | None = None
    """Of a stream: how far it has come."""

    @property
    def is_resumed(self) -> bool:
        return self.progress is not None and bool(self.progress.shown)


@dataclass(slots=True)
class Routed:
    """Where a call went, with the answer's headers."""

    decision: Decision
    epoch: str
    answer: Answer


class Dispatcher:
    def __init__(
        self,
        router: Router,
        upstream: Upstream,
        budget: RetryBudget,
        traces: Traces,
        metrics: Metrics,
        hindsight: Hindsight,
        clock: Callable[[], float],
        queue_s: float,
        observer: Observer,
        desk: FrontDesk,
        longest_hold_s: float,
    ) -> None:
        self._router = router
        self._upstream = upstream
        self._budget = budget
        self._traces = traces
        self._metrics = metrics
        self._hindsight = hindsight
        self._clock = clock
        self._observer = observer
        # NOTE: to ask for the running loop each time costs a system call, to see whether the process has forked.
        self._call_soon = asyncio.get_running_loop().call_soon
        self.reception = Reception(desk, metrics, clock, queue_s, longest_hold_s)
        self.arrivals = Waiters(clock)
        """Told whenever a replica may have become routable."""

    def warm_up(self) -> None:
        """What the first requests would wait for."""
        self._hindsight.warm_up()

    def use(self, timeouts: Timeouts) -> None:
        """For requests that wait from now on."""
        self.reception.queue_s, self.reception.longest_s = timeouts.queue_s, timeouts.first_byte_s

    def fleet_changed(self) -> None:
        """Replicas may have come or gone, or their queues have changed."""
        self.arrivals.notify()
        self.reception.wake()

    def serve(self, call: Call, relay: Callable[[Routed], Awaitable[_T]]) -> Awaitable[_T]:
        """Routes, sends and relays. `relay` raises an UpstreamError only if another replica may go on: the client has
        seen nothing yet, or the call's progress says what.

        Raises an AdmissionError, or the UpstreamError of the last attempt.
        """
        return self._serve(call, relay, None) if call.terms.deadline == inf else self._serve_in_time(call, relay)

    async def _serve_in_time(self, call: Call, relay: Callable[[Routed], Awaitable[_T]]) -> _T:
        async with first_byte_within(call.terms.deadline - self._clock()) as bound:
            return await self._serve(call, relay, bound)

    async def _serve(self, call: Call, relay: Callable[[Routed], Awaitable[_T]], bound: asyncio.Timeout | None) -> _T:
        tried: set[Incarnation] = set()
        failure: UpstreamError | None = None
        while True:
            guest = Guest(call.prompt, call.total_tokens, call.terms, frozenset(tried))
            slot = None if failure is None else await self._retry_slot(call, failure)
            try:
                if not self._arrive(guest):
                    await self._arrival(call, guest, failure)
                if guest.target:
                    await self._turn(call, guest)
                decision = self._decided(call, guest)
                heartbeat = self._router.fleet.heartbeat(decision.choice)
                try:
                    return await self._attempt(call, guest, decision, heartbeat, slot, bound, relay)
                except UpstreamError as error:
                    failure = error
                    tried.add((decision.choice, heartbeat.epoch))
                    self._blame(decision.choice, error)
                    call.trace.attempts[-1].failure = error.reason
                    if len(call.trace.attempts) >= MAX_ATTEMPTS:
                        raise
                    call = self._again(call, tried, error)
            finally:
                if slot is not None:
                    slot.close()
                self.reception.leave(guest)

    def _latest(self, call: Call, seconds: float) -> float:
        """In so many seconds, or at the request's deadline if that is sooner."""
        return min(self._clock() + seconds, call.terms.deadline)

    def _again(self, call: Call, tried: set[Incarnation], error: UpstreamError) -> Call:
        """What is sent next: the same, or what goes on after all that the client has."""
        progress = call.progress
        if progress is None or not progress.shown:
            self._metrics.retries.labels(error.reason).inc()
            return call
        fleet = self._router.fleet
        tried |= {(name, beat.epoch) for name in fleet.present() if not (beat := fleet.heartbeat(name)).resumes}
        # The prompt, and what of the answer there is.
        prompt = call.prompt._replace(tokens=call.trace.prompt_tokens + progress.tokens)
        return replace(call, prompt=prompt, total_tokens=max(call.total_tokens, prompt.tokens + 1))

    async def _retry_slot(self, call: Call, failure: UpstreamError) -> ExitStack | None:
        """A connection that was refused cost nobody anything, so trying another replica isn't charged to the budget.
        Those before it hold their slots until they have a first byte, so it waits as long as one may take."""
        if isinstance(failure, ReplicaUnreachable):
            return None
        return await self._budget.take(self._latest(call, self._upstream.timeouts.first_byte_s))

    def _arrive(self, guest: Guest) -> bool:
        begin = self._clock()
        arrived = self.reception.arrive(guest, begin)
        if arrived:
            self._metrics.of[self._router.policy.name].routing.observe(self._clock() - begin)
        return arrived

    async def _arrival(self, call: Call, guest: Guest, failure: UpstreamError | None) -> None:
        """Waits for a replica where there was none, or where the one tried has just gone and will come back."""
        if isinstance(failure, ReplicaUnreachable | ReplicaDied | None):
            queue_s = self.reception.queue_s
            deadline = self._latest(call, min(queue_s, RESUME_WAIT_S) if call.is_resumed else queue_s)
            if await self.arrivals.until(lambda: self._arrive(guest) or None, deadline):
                return
        raise failure or NoReplica(f"no replica is ready; waited {self.reception.queue_s:g} s for one")

    async def _turn(self, call: Call, guest: Guest) -> None:
        call.trace.mark("held", self._clock(), {"replica": guest.target})
        try:
            await self.reception.turn(guest)
        finally:
            call.trace.held_s = guest.held_s

    def _decided(self, call: Call, guest: Guest) -> Decision:
        considered, trace = guest.considered, call.trace
        assert considered is not None
        decision = considered.decision
        self._traces.decided(trace, considered)
        details = {"replica": decision.choice, "predicted_cached_tokens": decision.cached_tokens}
        trace.mark("routed", self._clock(), details)
        return decision

    async def _attempt(
        self,
        call: Call,
        guest: Guest,
        decision: Decision,
        heartbeat: Heartbeat,
        slot: ExitStack | None,
        bound: asyncio.Timeout | None,
        relay: Callable[[Routed], Awaitable[_T]],
    ) -> _T:
        trace, progress, choice, now = call.trace, call.progress, decision.choice, self._clock()
        lease = self._router.take(call.prompt, decision, now, call.choices)
        # It counts: the next one may be decided over.
        self.reception.wake()
        try:
            trace.attempts.append(Attempt(choice, after_tokens=progress.tokens if progress else 0))
            trace.replica_url, trace.replica_traced = heartbeat.url, call.traced
            trace.dispatched(now, choice)
            # NOTE: soon is when the bytes that somebody waits for are on their way; no error in it fails the request.
            self._call_soon(self._sent, trace, trace.considered)
            # NOTE: no name for the body, which would live as long as the stream.
            is_ours, fields = not self._router.fleet.is_silent(choice), self._fields(call)
            if not is_ours:
                fields += "".join(
                    f"{name}: {key}\r\n" for name, key in self._upstream.keys.headers(heartbeat.url).items()
                )
            answer = await self._upstream.post(heartbeat.url + call.path, _body(call, heartbeat.model, is_ours), fields)
            try:
                routed = Routed(decision, heartbeat.epoch, answer)
                if answer.status == 200:
                    if call.is_resumed:
                        self._resumed(call, routed, lease)
                    else:
                        self._first_byte(call, routed, lease)
                # It has its first byte.
                if slot is not None:
                    slot.close()
                if bound is not None:
                    bound.reschedule(None)
                self.reception.leave(guest)
                result = await relay(routed)
            finally:
                answer.close()
            trace.mark("done", self._clock())
            return result
        finally:
            lease.release(self._clock())

    def _fields(self, call: Call) -> str:
        """Of the header of what goes to a replica."""
        fields = f"{headers.REQUEST_ID}: {call.trace.request_id}\r\ncontent-type: application/json\r\n"
        if call.progress is not None:
            fields += f"{headers.RESUMABLE}: {call.progress.header}\r\n"
        if call.traced:
            fields += f"{headers.TRACE}: 1\r\n"
        if call.trace.span is not None:
            for name, value in self._observer.attempt(call.trace, call.trace.span).items():
                fields += f"{name}: {value}\r\n"
        return fields

    def _first_byte(self, call: Call, routed: Routed, lease: Lease) -> None:
        now, decision, trace = self._clock(), routed.decision, call.trace
        lease.first_token(now)
        trace.first_byte(now)
        self._router.fleet.succeeded(decision.choice)
        of = self._metrics.of[decision.policy]
        of.first_byte(now - trace.received_at, call.prompt.tokens, decision.cached_tokens)
        trace.delivered_tokens = None
        raw = routed.answer.headers.get(headers.DELIVERED_TOKENS, "")
        delivered = self._delivered(call, routed, int(raw), now) if raw.isascii() and raw.isdigit() else None
        self._call_soon(self._computed, trace, trace.considered, delivered)

    def _resumed(self, call: Call, routed: Routed, lease: Lease) -> None:
        """The prompt's first token is long past: that isn't measured twice."""
        if headers.RESUMABLE not in routed.answer.headers:
            raise ReplicaFailed("the replica can't go on with an answer")
        now = self._clock()
        lease.first_token(now)
        call.trace.mark("resumed", now, {"replica": routed.decision.choice})
        self._router.fleet.succeeded(routed.decision.choice)
        self._metrics.resumes.labels("resumed").inc()

    def told(self, call: Call, routed: Routed, delivered: int) -> None:
        """The replica has said how much of the prompt its cache gave. The first time counts, and a number that can't be
        doesn't."""
        if self._delivered(call, routed, delivered, self._clock()) is not None:
            self._call_soon(self._told, call.trace, call.trace.considered, delivered)

    def _delivered(self, call: Call, routed: Routed, delivered: int, now: float) -> int | None:
        (tokens, hashes, _), decision, trace = call.prompt, routed.decision, call.trace
        if delivered > tokens or trace.delivered_tokens is not None:
            return None
        trace.delivered_tokens = delivered
        possible = BLOCK_SIZE * min(len(hashes), (tokens - 1) // BLOCK_SIZE)
        prediction = Prediction(possible, decision.cached_tokens, decision.held_tokens)
        self._router.fleet.observe((decision.choice, routed.epoch), tokens, prediction, delivered, now)
        self._metrics.delivered(decision.policy, delivered, prediction.errors(delivered))
        return delivered

    def _sent(self, trace: Trace, considered: Considered | None) -> None:
        assert considered is not None
        trace.sent, trace.judged = self._hindsight.sent(considered, self._clock()), None

    def _computed(self, trace: Trace, considered: Considered | None, delivered: int | None) -> None:
        assert considered is not None
        self._hindsight.computed(considered)
        if delivered is not None:
            self._told(trace, considered, delivered)

    def _told(self, trace: Trace, considered: Considered | None, delivered: int) -> None:
        assert considered is not None and trace.sent is not None
        trace.judged = self._hindsight.told(considered, trace.sent, delivered)

    def _blame(self, replica: str, error: UpstreamError) -> None:
        if isinstance(error, ReplicaFailed):
            self._router.fleet.failed(replica, self._clock())
        elif not isinstance(error, ReplicaBusy):
            self._router.fleet.trip(replica, self._clock())

    def broke_off(self, call: Call, error: UpstreamError) -> None:
        """An answer that had begun came to no end, and no other replica is asked."""
        call.trace.attempts[-1].failure = error.reason
        self._blame(call.trace.attempts[-1].replica, error)


def _body(call: Call, model: str, is_ours: bool) -> bytes:
    added: dict[str, Any] = {"model": model}
    if call.progress is not None:
        added |= call.progress.field()
    if not is_ours and call.as_text is not None:
        return orjson.dumps(call.as_text() | added)
    fields = orjson.dumps(call.payload | added)
    return b'%b,"prompt_token_ids":[%b]}' % (fields[:-1], call.token_ids)
