"""One request to one replica, and to another where that fails before the client has seen anything."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
import orjson

from gateway.admission import Waiters
from gateway.errors import NoReplica, ReplicaBusy, ReplicaDied, ReplicaFailed, ReplicaUnreachable, UpstreamError
from gateway.fleet import Incarnation, Lease
from gateway.hindsight import Hindsight
from gateway.metrics import Metrics
from gateway.router import Considered, Router
from gateway.routing.base import Decision, RouteRequest
from gateway.traces import Attempt, Trace, Traces
from gateway.trust import Prediction
from gateway.upstream import RetryBudget, Upstream
from replica.protocol import headers
from replica.protocol.hashing import BLOCK_SIZE

MAX_ATTEMPTS = 5
"""A prompt that fails wherever it goes must not visit a whole fleet."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Call:
    """A request, parsed and tokenised."""

    path: str
    payload: dict[str, Any]
    """What the replica gets, but for the model's name."""
    prompt: RouteRequest
    total_tokens: int
    """Prompt and the shortest answer that will do."""
    choices: int
    """Answers that the replica decodes side by side."""
    traced: bool
    trace: Trace


@dataclass(frozen=True, slots=True)
class Routed:
    """Where a call went, with the answer's headers."""

    decision: Decision
    epoch: str
    answer: aiohttp.ClientResponse


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
    ) -> None:
        self._router = router
        self._upstream = upstream
        self._budget = budget
        self._traces = traces
        self._metrics = metrics
        self._hindsight = hindsight
        self._clock = clock
        self._queue_s = queue_s
        self.arrivals = Waiters(clock)
        """Told whenever a replica may have become routable."""

    async def serve(self, call: Call, relay: Callable[[Routed], Awaitable[_T]]) -> _T:
        """Routes, sends and relays. `relay` raises an UpstreamError only if the client has seen nothing yet.

        Raises NoReplica, or the UpstreamError of the last attempt.
        """
        tried: set[Incarnation] = set()
        failure: UpstreamError | None = None
        while True:
            deadline = self._clock() + self._queue_s
            with await self._retry_slot(failure, deadline) as slot:
                decision = await self._route(call, tried, failure, deadline)
                epoch = self._router.fleet.heartbeat(decision.choice).epoch
                try:
                    return await self._attempt(call, decision, slot, relay)
                except UpstreamError as error:
                    failure = error
                    tried.add((decision.choice, epoch))
                    self._blame(decision.choice, error)
                    call.trace.attempts[-1].failure = error.reason
                    if len(call.trace.attempts) >= MAX_ATTEMPTS:
                        raise
                    self._metrics.retries.labels(error.reason).inc()

    async def _retry_slot(self, failure: UpstreamError | None, deadline: float) -> ExitStack:
        """A connection that was refused cost nobody anything, so trying another replica isn't charged to the budget."""
        if failure is None or isinstance(failure, ReplicaUnreachable):
            return ExitStack()
        return await self._budget.take(deadline)

    async def _route(
        self, call: Call, tried: set[Incarnation], failure: UpstreamError | None, deadline: float
    ) -> Decision:
        """Waits for a replica where there was none, or where the one tried has just gone and will come back."""
        decision = self._decide(call, tried)
        if decision is None and isinstance(failure, ReplicaUnreachable | ReplicaDied | None):
            decision = await self.arrivals.until(lambda: self._decide(call, tried), deadline)
        if decision is None:
            raise failure or NoReplica(f"no replica is ready; waited {self._queue_s:g} s for one")
        return decision

    def _decide(self, call: Call, tried: set[Incarnation]) -> Decision | None:
        begin = self._clock()
        self._router.expire(begin)
        considered = self._router.consider(call.prompt, call.total_tokens, tried, begin)
        if considered is None:
            return None
        decision = considered.decision
        self._metrics.routing.labels(decision.policy).observe(self._clock() - begin)
        self._traces.decided(call.trace, considered)
        call.trace.mark(
            "routed", self._clock(), replica=decision.choice, predicted_cached_tokens=decision.cached_tokens
        )
        return decision

    async def _attempt(
        self, call: Call, decision: Decision, slot: ExitStack, relay: Callable[[Routed], Awaitable[_T]]
    ) -> _T:
        heartbeat = self._router.fleet.heartbeat(decision.choice)
        body = orjson.dumps(call.payload | {"model": heartbeat.model})
        sent_headers = {headers.REQUEST_ID: call.trace.request_id, "Content-Type": "application/json"}
        if call.traced:
            sent_headers[headers.TRACE] = "1"
        lease = self._router.take(call.prompt, decision, self._clock(), call.choices)
        try:
            call.trace.attempts.append(Attempt(decision.choice))
            call.trace.replica_url, call.trace.replica_traced = heartbeat.url, call.traced
            call.trace.mark("dispatched", self._clock(), replica=decision.choice)
            # NOTE: soon is when the bytes that somebody waits for are on their way; no error in it fails the request.
            asyncio.get_running_loop().call_soon(self._sent, call.trace, call.trace.considered)
            async with self._upstream.post(heartbeat.url + call.path, body, sent_headers) as answer:
                slot.close()
                routed = Routed(decision, heartbeat.epoch, answer)
                if answer.status == 200:
                    self._first_byte(call, routed, lease)
                result = await relay(routed)
            call.trace.mark("done", self._clock())
            return result
        finally:
            lease.release(self._clock())

    def _first_byte(self, call: Call, routed: Routed, lease: Lease) -> None:
        now, decision = self._clock(), routed.decision
        lease.first_token(now)
        call.trace.mark("first_byte", now)
        self._router.fleet.succeeded(decision.choice)
        ttft_s = now - call.trace.received_at
        self._metrics.first_byte(decision.policy, ttft_s, call.prompt.tokens, decision.cached_tokens)
        asyncio.get_running_loop().call_soon(self._computed, call.trace.considered)
        call.trace.delivered_tokens = None
        raw = routed.answer.headers.get(headers.DELIVERED_TOKENS, "")
        if raw.isascii() and raw.isdigit():
            self.told(call, routed, int(raw))

    def told(self, call: Call, routed: Routed, delivered: int) -> None:
        """The replica has said how much of the prompt its cache gave. The first time counts, and a number that can't be
        doesn't."""
        prompt, decision, trace = call.prompt, routed.decision, call.trace
        if delivered > prompt.tokens or trace.delivered_tokens is not None:
            return
        trace.delivered_tokens = delivered
        prediction = Prediction(
            possible=BLOCK_SIZE * min(len(prompt.hashes), (prompt.tokens - 1) // BLOCK_SIZE),
            expected=decision.cached_tokens,
            held=decision.held_tokens,
        )
        who = decision.choice, routed.epoch
        self._router.fleet.observe(who, prompt.tokens, prediction, delivered, self._clock())
        self._metrics.delivered(decision.policy, delivered, prediction.errors(delivered))
        asyncio.get_running_loop().call_soon(self._told, trace, trace.considered, delivered)

    def _sent(self, trace: Trace, considered: Considered | None) -> None:
        assert considered is not None
        trace.sent, trace.judged = self._hindsight.sent(considered, self._clock()), None

    def _computed(self, considered: Considered | None) -> None:
        assert considered is not None
        self._hindsight.computed(considered)

    def _told(self, trace: Trace, considered: Considered | None, delivered: int) -> None:
        assert considered is not None and trace.sent is not None
        trace.judged = self._hindsight.told(considered, trace.sent, delivered)

    def _blame(self, replica: str, error: UpstreamError) -> None:
        if isinstance(error, ReplicaFailed):
            self._router.fleet.failed(replica, self._clock())
        elif not isinstance(error, ReplicaBusy):
            self._router.fleet.trip(replica, self._clock())

    def broke_off(self, replica: str) -> None:
        """An answer that had begun came to no end."""
        self._metrics.broken_streams.inc()
        self._router.fleet.trip(replica, self._clock())
