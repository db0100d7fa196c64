"""Settings of an adapter, checked."""

import re
import uuid
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from replica.protocol.redis_url import RedisUrlError, parse_redis_url
from replica.protocol.signing import Signer

_ENDPOINT = re.compile(r"(tcp|ipc)://\S+")
_URL = re.compile(r"https?://[^/?#@\s]+")
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class ConfigError(ValueError):
    """A setting is wrong; the message names it."""


class Engine(StrEnum):
    VLLM = "vllm"
    SGLANG = "sglang"


@dataclass(frozen=True, slots=True)
class AdoptConfig:
    engine: Engine
    engine_url: str
    kv_events: str
    """ZMQ endpoint of the engine's events. One with a wildcard, such as tcp://*:5557, is bound, for an engine that
    connects."""
    folder: Path
    model_name: str
    """As clients of the fleet call it."""
    redis_url: str = field(repr=False)
    kv_replay: str | None = None
    kv_topic: str = ""
    fleet: str = "default"
    id: str = field(default_factory=lambda: f"a-{uuid.uuid4().hex[:8]}")
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    advertised_url: str | None = None
    """What gateways connect to; None: http://host:port."""
    drain_s: float = 30.0
    signer: Signer = field(default_factory=Signer)
    """With the fleet's key, if it has one."""

    def __post_init__(self) -> None:
        try:
            parse_redis_url(self.redis_url)
        except RedisUrlError as error:
            raise ConfigError(f"redis_url: {error}") from error
        if not _URL.fullmatch(self.engine_url):
            raise ConfigError(f"url: {self.engine_url!r} is no http://host:port")
        for name, endpoint in (("kv_events", self.kv_events), ("kv_replay", self.kv_replay)):
            if endpoint is not None and not _ENDPOINT.fullmatch(endpoint):
                raise ConfigError(f"{name}: {endpoint!r} is no tcp://host:port")
        if not _ID.fullmatch(self.id):
            raise ConfigError(f"id: {self.id!r} may hold only letters, digits, '-', '_' and '.'")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port: {self.port} is no port")
        if self.drain_s < 0:
            raise ConfigError("drain_s must not be negative")
