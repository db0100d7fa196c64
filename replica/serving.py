"""What the replica's handlers share."""

import asyncio
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from replica.admission import QueueLimits
from replica.grammar import GrammarCompiler
from replica.metrics import ReplicaMetrics
from replica.profiles import Profile
from replica.protocol.hashing import BLOCK_SIZE, namespace_hash
from replica.protocol.otel import SpanSink
from replica.protocol.records import ReplicaState
from replica.protocol.text import ModelText
from replica.token_bytes import TokenBytes
from replica.trace import TraceLog
from replica.worker import EngineWorker

TICK_S = 1.0
"""By which it may be late before it counts as standing still."""


@dataclass
class Serving:
    text: ModelText
    worker: EngineWorker
    metrics: ReplicaMetrics
    traces: TraceLog
    replica_id: str
    max_context: int
    queue: QueueLimits
    state: ReplicaState = ReplicaState.READY
    spans: SpanSink = field(default_factory=lambda: SpanSink(None))
    has_logits: bool = True
    """The engine computes the model."""
    on_state: Callable[[], None] = lambda: None
    """The state has changed."""
    ticked_at: float = math.inf
    """When the event loop last came round to it; infinity before it runs."""

    @functools.cached_property
    def grammars(self) -> GrammarCompiler:
        return GrammarCompiler(self.text)

    @functools.cached_property
    def names(self) -> TokenBytes:
        return TokenBytes(self.text.tokenizer)

    def drain(self) -> None:
        """Nothing new from now on, and the fleet is told at once."""
        self.state = ReplicaState.DRAINING
        self.on_state()

    def stalled_s(self, now: float) -> float:
        """For how long engine or event loop have stood still; see Heartbeat. From any thread."""
        return max(self.worker.stalled_s(now), now - self.ticked_at - TICK_S)

    async def tick(self, clock: Callable[[], float]) -> None:
        """For as long as the event loop runs."""
        while True:
            self.ticked_at = clock()
            await asyncio.sleep(TICK_S)

    def profile(self) -> Profile:
        status, limits = self.worker.status, self.worker.limits
        cost = status.cost
        return Profile(
            name=self.text.name,
            source=f"fitted by replica {self.replica_id} from its own steps of the model {self.text.name}",
            c0=cost.c0,
            c_lin=cost.c_lin,
            c_att=cost.c_att,
            c_dec=cost.c_dec,
            max_step_tokens=limits.max_step_tokens,
            max_running=limits.max_running,
            kv_tokens=status.load.total_blocks * BLOCK_SIZE,
        )

    def namespace(self, salt: str | None) -> int:
        """The parent of a prompt's first block."""
        text = self.text
        return namespace_hash(model=text.model_fingerprint, tokenizer=text.tokenizer_fingerprint, salt=salt or "")

    def check_model(self, name: str | None) -> None:
        """Raises UnknownModel."""
        if name not in (None, self.text.name):
            raise UnknownModel(f"the model {name!r} does not exist; this replica serves {self.text.name!r}")


SERVING = web.AppKey("serving", Serving)


class Refused(Exception):
    """Not now, not here: another replica may take the request."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnknownModel(Exception):
    """The request names a model that isn't served here."""
