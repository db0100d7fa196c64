"""An adopted engine as a replica of a fleet: its state, its load, what is known of it."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

from adopt.config import AdoptConfig
from adopt.engine import EngineClient, EngineLoad, Served
from adopt.mirror import Mirror
from adopt.stream import EventStream
from adopt.traffic import Traffic
from replica.cost_model import CostModelFit
from replica.protocol.canary import Fingerprints, fingerprints
from replica.protocol.hashing import BLOCK_SIZE, HASH_VERSION, block_hashes, namespace_hash
from replica.protocol.records import Heartbeat, Load, ReplicaState
from replica.protocol.text import ModelText

log = logging.getLogger(__name__)


@dataclass
class Adapter:
    config: AdoptConfig
    text: ModelText
    session: aiohttp.ClientSession
    engine: EngineClient
    mirror: Mirror
    stream: EventStream
    served: Served
    url: str
    """Our own, that gateways connect to."""
    up: bool = True
    """The engine is well."""
    draining: bool = False
    load: EngineLoad = field(default_factory=EngineLoad)
    reports_cached: bool = False
    """The engine has told cached tokens with an answer."""
    state_changed: Callable[[], None] = lambda: None
    """Told when `state` has changed."""
    fit: CostModelFit = field(init=False)
    traffic: Traffic = field(init=False)
    _fingerprints: Fingerprints = field(init=False)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _complained: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._fingerprints = fingerprints(self.text)
        # TTFT is fitted as a whole, as if a prompt were computed in one step, however the engine cuts it up.
        self.fit = CostModelFit(self.max_context)
        self.traffic = Traffic(self.fit, time.monotonic, self._idle.set)

    @property
    def state(self) -> ReplicaState:
        return ReplicaState.READY if self.up and not self.draining else ReplicaState.DRAINING

    @property
    def max_context(self) -> int:
        return min(self.text.max_context, self.served.max_context or self.text.max_context)

    def set_up(self, up: bool) -> None:
        if up is not self.up:
            log.warning("the engine is %s", "back" if up else "down")
            self.up = up
            self.state_changed()

    def set_draining(self) -> None:
        self.draining = True
        self.state_changed()

    async def drained(self) -> None:
        """Until no request is under way."""
        self._idle.clear()
        if self.traffic.requests:
            await self._idle.wait()

    def complain(self, message: str) -> None:
        """Once a message."""
        if message not in self._complained:
            self._complained.add(message)
            log.warning("%s", message)

    def cached_tokens(self, prompt: list[int], salt: str | None) -> int:
        """Of a prompt, as far as the mirror knows; its last token is computed in any case."""
        hashes = block_hashes(prompt[:-1], namespace_of(self.text, salt or ""))
        tokens = self.mirror.match(hashes) * BLOCK_SIZE
        return tokens - tokens % self.mirror.block_tokens

    def cached_reported(self, cached: int | None) -> int | None:
        """Older engines leave out the number where it is zero."""
        if cached is not None:
            self.reports_cached = True
        return 0 if cached is None and self.reports_cached else cached

    def heartbeat(self, epoch: str) -> Heartbeat:
        return Heartbeat(
            replica=self.config.id,
            url=self.url,
            state=self.state,
            model=self.config.model_name,
            **self._fingerprints,
            hash_version=HASH_VERSION,
            block_size=BLOCK_SIZE,
            max_context=self.max_context,
            epoch=epoch,
            cost=self.fit.model,
            load=self._load(),
            reuse_tokens=self.mirror.block_tokens,
        )

    def _load(self) -> Load:
        total = self.load.total_tokens // BLOCK_SIZE
        idle = total - int(total * self.load.usage)
        evictable = min(self.mirror.num_held, idle)
        return Load(
            waiting=max(self.load.waiting, self.traffic.prefilling),
            running=self.load.running,
            decoding=self.load.running,
            pending_tokens=self.traffic.pending_tokens,
            free_blocks=idle - evictable,
            evictable_blocks=evictable,
            total_blocks=total,
        )


def namespace_of(text: ModelText, salt: str) -> int:
    """The parent of a prompt's first block."""
    return namespace_hash(model=text.model_fingerprint, tokenizer=text.tokenizer_fingerprint, salt=salt)
