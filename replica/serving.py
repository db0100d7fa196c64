"""What the replica's handlers share."""

import functools
from dataclasses import dataclass

from aiohttp import web

from replica.admission import QueueLimits
from replica.grammar import GrammarCompiler
from replica.metrics import ReplicaMetrics
from replica.profiles import Profile
from replica.protocol.hashing import BLOCK_SIZE, namespace_hash
from replica.protocol.records import ReplicaState
from replica.protocol.text import ModelText
from replica.token_bytes import TokenBytes
from replica.trace import TraceLog
from replica.worker import EngineWorker


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
    has_logits: bool = True
    """The engine computes the model."""

    @functools.cached_property
    def grammars(self) -> GrammarCompiler:
        return GrammarCompiler(self.text)

    @functools.cached_property
    def names(self) -> TokenBytes:
        return TokenBytes(self.text.tokenizer)

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
