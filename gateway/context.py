"""What belongs to one request of the hot path, from its head to the end of its answer."""

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from gateway.access_log import Answered
from gateway.config import GatewayConfig
from gateway.http.exchange import Exchange
from gateway.keys import (
    BUDGET,
    CLOCK,
    CONFIG,
    GATE,
    LIFECYCLE,
    LIVE,
    METRICS,
    OBSERVER,
    POOLS,
    RECORDER,
    TRACES,
    UPSTREAM,
    Lifecycle,
    Live,
)
from gateway.metrics import Metrics
from gateway.observer import Observer
from gateway.pools import Pool, Pools
from gateway.recording.recorder import Recorder
from gateway.relay import ClientStream
from gateway.tenants.caller import ANONYMOUS, Caller
from gateway.tenants.gatekeeper import Gatekeeper
from gateway.traces import Trace, Traces
from gateway.upstream import RetryBudget, Upstream


@dataclass(frozen=True, slots=True)
class Parts:
    """What the frame of every request needs of a running application: looked up once."""

    budget: RetryBudget
    clock: Callable[[], float]
    config: GatewayConfig
    gate: Gatekeeper
    lifecycle: Lifecycle
    live: Live
    metrics: Metrics
    observer: Observer
    pools: Pools
    recorder: Recorder
    traces: Traces
    upstream: Upstream

    @classmethod
    def of(cls, app: web.Application) -> "Parts":
        """Once it is set up."""
        return cls(
            app[BUDGET],
            app[CLOCK],
            app[CONFIG],
            app[GATE],
            app[LIFECYCLE],
            app[LIVE],
            app[METRICS],
            app[OBSERVER],
            app[POOLS],
            app[RECORDER],
            app[TRACES],
            app[UPSTREAM],
        )


@dataclass(slots=True)
class Context:
    parts: Parts
    exchange: Exchange
    trace: Trace
    pool: Pool
    """Of the model that is asked for, once that is known; before, the first."""
    caller: Caller = ANONYMOUS
    stream: ClientStream | None = None
    """Where the client has asked for one."""

    def answered(self, status: int, code: str | None) -> Answered:
        """As of now, at its end."""
        exchange, trace = self.exchange, self.trace
        took_s, path = self.parts.clock() - trace.received_at, exchange.path
        return Answered(exchange.method, path, path, status, took_s, trace.request_id, code)
