"""The resources of the application, by typed key. What they are made of and how they live: `app.py`."""

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from gateway.config import GatewayConfig
from gateway.metrics import Metrics
from gateway.observer import Observer
from gateway.pools import Pools
from gateway.recording.recorder import Recorder
from gateway.tenants.caller import Caller
from gateway.tenants.gatekeeper import Gatekeeper
from gateway.traces import Traces
from gateway.upstream import RetryBudget, Upstream


class Lifecycle:
    """Whether the gateway is on its way out."""

    def __init__(self, started_at: int) -> None:
        self.started_at = started_at
        self.leave_by: float | None = None
        """It still serves, but nobody should begin to use it, and then it is gone."""
        self.draining = False
        """Nothing new is served."""


@dataclass(slots=True)
class Live:
    """What may change while the gateway runs; see reload.py."""

    config: GatewayConfig
    admin_port: int | None = None
    """The one that was got, where 0 was asked for."""


CONFIG = web.AppKey("CONFIG", GatewayConfig)
"""As it was at the start."""
LIVE = web.AppKey("LIVE", Live)
GATE = web.AppKey("GATE", Gatekeeper)
POOLS = web.AppKey("POOLS", Pools)
CLOCK: web.AppKey[Callable[[], float]] = web.AppKey("CLOCK")
LIFECYCLE = web.AppKey("LIFECYCLE", Lifecycle)
METRICS = web.AppKey("METRICS", Metrics)
TRACES = web.AppKey("TRACES", Traces)
BUDGET = web.AppKey("BUDGET", RetryBudget)
UPSTREAM = web.AppKey("UPSTREAM", Upstream)
OBSERVER = web.AppKey("OBSERVER", Observer)
RECORDER = web.AppKey("RECORDER", Recorder)

ANSWERED = web.RequestKey("ANSWERED", bool)
"""Of a request that is counted, and its errors are answered, where it is served."""
CALLER = web.RequestKey("CALLER", Caller)
