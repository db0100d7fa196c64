"""The resources of the application, by typed key. What they are made of and how they live: `app.py`."""

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from gateway.config import GatewayConfig
from gateway.dispatch import Dispatcher
from gateway.fleet import Fleet
from gateway.index.prefix_index import PrefixIndex
from gateway.metrics import Metrics
from gateway.observer import Observer
from gateway.probes import Prober
from gateway.recording.recorder import Recorder
from gateway.router import Router
from gateway.routing.shadow import Shadow
from gateway.tenants.caller import Caller
from gateway.tenants.gatekeeper import Gatekeeper
from gateway.tokens import PromptTokenizer
from gateway.traces import Traces
from gateway.upstream import RetryBudget, Upstream
from replica.protocol.text import ModelText


class Lifecycle:
    """Whether the gateway is on its way out."""

    def __init__(self, started_at: int) -> None:
        self.started_at = started_at
        self.leave_by: float | None = None
        """It still serves, but nobody should begin to use it, and then it is gone."""
        self.draining = False
        """Nothing new is served."""


class ContextLimit:
    """The longest context of the fleet, looked up anew ten times a second and not for each request."""

    STALE_S = 0.1

    def __init__(self, fleet: Fleet, own: int) -> None:
        """`own`: of the model, which no replica exceeds."""
        self._fleet = fleet
        self._own = own
        self._value = own
        self._until = float("-inf")

    def at(self, now: float) -> int:
        if now >= self._until:
            self._value, self._until = min(self._own, self._fleet.max_context(now)), now + self.STALE_S
        return self._value


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
TEXT = web.AppKey("TEXT", ModelText)
CLOCK: web.AppKey[Callable[[], float]] = web.AppKey("CLOCK")
LIFECYCLE = web.AppKey("LIFECYCLE", Lifecycle)
METRICS = web.AppKey("METRICS", Metrics)
TRACES = web.AppKey("TRACES", Traces)
TOKENIZER = web.AppKey("TOKENIZER", PromptTokenizer)
FLEET = web.AppKey("FLEET", Fleet)
CONTEXT_LIMIT = web.AppKey("CONTEXT_LIMIT", ContextLimit)
INDEX = web.AppKey("INDEX", PrefixIndex)
ROUTER = web.AppKey("ROUTER", Router)
BUDGET = web.AppKey("BUDGET", RetryBudget)
UPSTREAM = web.AppKey("UPSTREAM", Upstream)
OBSERVER = web.AppKey("OBSERVER", Observer)
RECORDER = web.AppKey("RECORDER", Recorder)
SHADOW = web.AppKey("SHADOW", Shadow)
PROBER = web.AppKey("PROBER", Prober)
DISPATCHER = web.AppKey("DISPATCHER", Dispatcher)

ANSWERED = web.RequestKey("ANSWERED", bool)
"""Of a request that is counted, and its errors are answered, where it is served."""
CALLER = web.RequestKey("CALLER", Caller)
