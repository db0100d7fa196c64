"""What the replica's handlers share."""

import functools
from dataclasses import dataclass

from aiohttp import web

from replica.admission import QueueLimits
from replica.grammar import GrammarCompiler
from replica.metrics import ReplicaMetrics
from replica.protocol.hashing import namespace_hash
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

    @functools.cached_property
    def grammars(self) -> GrammarCompiler:
        return GrammarCompiler(self.text)

    @functools.cached_property
    def names(self) -> TokenBytes:
        return TokenBytes(self.text.tokenizer)

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
