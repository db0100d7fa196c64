"""The resources of the application, by typed key. What they are made of and how they live: `app.py`."""

from collections.abc import Callable

from aiohttp import web

from gateway.config import GatewayConfig
from gateway.dispatch import Dispatcher
from gateway.fleet import Fleet
from gateway.index.prefix_index import PrefixIndex
from gateway.metrics import Metrics
from gateway.recording.recorder import Recorder
from gateway.router import Router
from gateway.routing.shadow import Shadow
from gateway.tokens import PromptTokenizer
from gateway.traces import Trace, Traces
from gateway.upstream import RetryBudget, Upstream
from replica.protocol.text import ModelText


class Lifecycle:
    """Whether the gateway is on its way out."""

    def __init__(self, started_at: int) -> None:
        self.started_at = started_at
        self.draining = False


CONFIG = web.AppKey("CONFIG", GatewayConfig)
TEXT = web.AppKey("TEXT", ModelText)
CLOCK: web.AppKey[Callable[[], float]] = web.AppKey("CLOCK")
LIFECYCLE = web.AppKey("LIFECYCLE", Lifecycle)
METRICS = web.AppKey("METRICS", Metrics)
TRACES = web.AppKey("TRACES", Traces)
TOKENIZER = web.AppKey("TOKENIZER", PromptTokenizer)
FLEET = web.AppKey("FLEET", Fleet)
INDEX = web.AppKey("INDEX", PrefixIndex)
ROUTER = web.AppKey("ROUTER", Router)
BUDGET = web.AppKey("BUDGET", RetryBudget)
UPSTREAM = web.AppKey("UPSTREAM", Upstream)
RECORDER = web.AppKey("RECORDER", Recorder)
SHADOW = web.AppKey("SHADOW", Shadow)
DISPATCHER = web.AppKey("DISPATCHER", Dispatcher)

TRACE = web.RequestKey("TRACE", Trace)
"""Of a request that generates: its answer carries the id and the decision, errors included."""
