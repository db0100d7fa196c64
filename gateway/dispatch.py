"""One request to one replica, and to another where that fails before the client has seen anything."""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
import orjson

from gateway.admission import Waiters
from gateway.errors import NoReplica, ReplicaBusy, ReplicaDied, ReplicaFailed, ReplicaUnreachable, UpstreamError
from gateway.fleet import Lease
from gateway.metrics import Metrics
from gateway.router import Incarnation, Router
from gateway.routing.base import Decision, RouteRequest
from gateway.traces import Attempt, Trace, Traces
from gateway.upstream import RetryBudget, Upstream
from replica.protocol import headers

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
    answer: aiohttp.ClientResponse


class Dispatcher:
    def __init__(
        self,
        router: Router,
        upstream: Upstream,
        budget: RetryBudget,
        traces: Traces,
        metrics: Metrics,
        clock: Callable[[], float],
        queue_s: float,
    ) -> None:
        self._router = router
        self._upstream = upstream
        self._budget = budget
        self._traces = traces
        self._metrics = metrics
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
        decision = self._router.route(call.prompt, call.total_tokens, tried, begin)
        if decision is not None:
            self._metrics.routing.labels(decision.policy).observe(self._clock() - begin)
            self._traces.decided(call.trace, decision)
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
            async with self._upstream.post(heartbeat.url + call.path, body, sent_headers) as answer:
                slot.close()
                if answer.status == 200:
                    self._first_byte(call, decision, lease, answer)
                result = await relay(Routed(decision, answer))
            call.trace.mark("done", self._clock())
            return result
        finally:
            lease.release(self._clock())

    def _first_byte(self, call: Call, decision: Decision, lease: Lease, answer: aiohttp.ClientResponse) -> None:
        now = self._clock()
        lease.first_token(now)
        call.trace.mark("first_byte", now)
        self._router.fleet.succeeded(decision.choice)
        raw = answer.headers.get(headers.DELIVERED_TOKENS, "")
        delivered = int(raw) if raw.isascii() and raw.isdigit() else None
        call.trace.delivered_tokens = delivered
        if delivered is not None:
            self._router.fleet.observe(decision.choice, call.prompt.tokens, decision.cached_tokens, delivered)
        ttft_s = now - call.trace.received_at
        self._metrics.first_byte(decision.policy, ttft_s, call.prompt.tokens, decision.cached_tokens, delivered)

    def _blame(self, replica: str, error: UpstreamError) -> None:
        if isinstance(error, ReplicaFailed):
            self._router.fleet.failed(replica, self._clock())
        elif not isinstance(error, ReplicaBusy):
            self._router.fleet.trip(replica, self._clock())

    def broke_off(self, replica: str) -> None:
        """An answer that had begun came to no end."""
        self._metrics.broken_streams.inc()
        self._router.fleet.trip(replica, self._clock())
