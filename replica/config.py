"""Settings of a replica, checked; the only reader of the machine's memory and cores."""

import math
import os
import uuid
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from replica.config_error import ConfigError as ConfigError
from replica.device_config import DeviceConfig
from replica.profiles import Profile
from replica.protocol.hashing import BLOCK_SIZE
from replica.protocol.otel import is_endpoint
from replica.protocol.redis_url import RedisUrlError, parse_redis_url
from replica.protocol.signing import Signer

_STEP_TOKENS_PER_THREAD = 256
_DEVICE_STEP_TOKENS = 8192
_MAX_RUNNING = 64
_DEVICE_MAX_RUNNING = 256


class Order(StrEnum):
    """Which of several prompts of one priority is prefilled first."""

    SHORTEST = "shortest"
    """Fewest tokens still to compute: least mean TTFT."""
    LPM = "lpm"
    """Longest prefix computed or cached: most reuse where the cache is small."""
    FCFS = "fcfs"
    """In order of arrival."""


class Eviction(StrEnum):
    """Which pages of the prefix cache go first; see replica/cache/eviction."""

    LRU = "lru"
    """Least recently used."""
    LEARNED = "learned"
    """Of a kind, by uses and age, that has been seen to come back least for the room it takes."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    weights: str = "int8"
    """int8 (quantised by row and group of columns) or fp32 (the reference)."""
    kv: str | None = None
    """int8 (quantised by token and head) or fp32; None: as the weights."""
    threads: int = 1
    """Compute threads. Over all replicas of a machine they shouldn't exceed its cores."""
    kv_memory_bytes: int | None = None
    """None: a fifth of the memory that is available at start."""
    max_step_tokens: int | None = None
    """Tokens computed in one step; None: 256 for each compute thread, 8,192 on a GPU. A step this long is what a decode
    may have to wait for; on one CPU core larger steps hardly gain throughput."""
    max_running: int | None = None
    """Sequences that hold pages at a time; None: 64, 256 on a GPU. Each decode takes a token of every step, so fewer
    than max_step_tokens."""
    order: Order = Order.SHORTEST
    prefix_cache: bool = True
    eviction: Eviction = Eviction.LRU
    device: DeviceConfig | None = None
    """None: the model is computed on the CPU, by `weights` and `kv`; else those are `device`'s."""

    def __post_init__(self) -> None:
        if self.weights not in ("int8", "fp32"):
            raise ConfigError(f"weights: {self.weights!r} is neither int8 nor fp32")
        if self.kv not in (None, "int8", "fp32"):
            raise ConfigError(f"kv: {self.kv!r} is neither int8 nor fp32")
        cores = os.cpu_count() or 1
        if not 1 <= self.threads <= cores:
            raise ConfigError(f"threads: {self.threads} is not between 1 and this machine's {cores} cores")
        if self.kv_memory_bytes is not None and self.kv_memory_bytes < 1:
            raise ConfigError("kv_memory_gib must be more than 0")
        if self.running < 1:
            raise ConfigError("max_running must be at least 1")
        if self.step_tokens <= self.running:
            raise ConfigError(
                f"max_step_tokens: {self.step_tokens} leave no room for prompts beside {self.running} decodes "
                "(max_running)"
            )
        if self.order not in tuple(Order):
            raise ConfigError(f"order: {self.order!r} is none of {', '.join(Order)}")
        if self.eviction not in tuple(Eviction):
            raise ConfigError(f"eviction: {self.eviction!r} is none of {', '.join(Eviction)}")

    @property
    def step_tokens(self) -> int:
        if self.max_step_tokens is not None:
            return self.max_step_tokens
        return _STEP_TOKENS_PER_THREAD * self.threads if self.device is None else _DEVICE_STEP_TOKENS

    @property
    def running(self) -> int:
        if self.max_running is not None:
            return self.max_running
        return _MAX_RUNNING if self.device is None else _DEVICE_MAX_RUNNING

    @property
    def kv_dtype(self) -> Literal["int8", "fp32"]:
        return "int8" if (self.kv or self.weights) == "int8" else "fp32"


@dataclass(frozen=True, slots=True)
class TimingConfig:
    """An engine that computes nothing: each step lasts as long as the profile says."""

    profile: Profile
    kv_tokens: int | None = None
    """What the KV memory holds; None: the profile's."""
    time_scale: float = 1.0
    """0.1: ten times as quick."""

    def __post_init__(self) -> None:
        if self.num_pages < 2:
            raise ConfigError(f"kv_tokens: fewer than 2 blocks of {BLOCK_SIZE}")
        if not (self.time_scale > 0 and math.isfinite(self.time_scale)):
            raise ConfigError(f"time_scale: {self.time_scale} is no positive number")

    @property
    def num_pages(self) -> int:
        return (self.profile.kv_tokens if self.kv_tokens is None else self.kv_tokens) // BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    folder: Path
    model_name: str
    id: str = field(default_factory=lambda: f"r-{uuid.uuid4().hex[:8]}")
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    advertised_url: str | None = None
    """What gateways connect to; None: http://host:port."""
    redis_url: str | None = field(default=None, repr=False)
    """See replica/protocol/redis_url.py. None: serve alone, unknown to any gateway."""
    fleet: str = "default"
    signer: Signer = field(default_factory=Signer)
    """With the fleet's key, if it has one."""
    max_waiting: int = 1024
    """Requests waiting in the queue; more are refused with 503."""
    max_waiting_tokens: int | None = None
    """Prompt tokens waiting in the queue that aren't in the cache; more are refused with 503. None: see
    replica/admission.py."""
    drain_s: float = 30.0
    engine: EngineConfig = field(default_factory=EngineConfig)
    timing: TimingConfig | None = None
    """None: the model is computed."""
    otlp_endpoint: str | None = None
    """An OpenTelemetry collector's URL, for spans; see replica/protocol/otel.py."""

    def __post_init__(self) -> None:
        if not self.id or not self.id.isascii() or not all(c.isalnum() or c in "-_." for c in self.id):
            raise ConfigError(f"id: {self.id!r} may hold only letters, digits, '-', '_' and '.'")
        if len(self.id) > 128:
            raise ConfigError("id: longer than 128 characters")
        if not self.fleet or set(self.fleet) & set("{}: \n"):
            raise ConfigError(f"fleet must be a plain name, not {self.fleet!r}")
        if self.redis_url is not None:
            try:
                parse_redis_url(self.redis_url)
            except RedisUrlError as error:
                raise ConfigError(f"redis_url: {error}") from error
            if self.host in ("0.0.0.0", "::") and self.advertised_url is None:
                raise ConfigError(f"url: gateways can't connect to {self.host}, so it must be given")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port: {self.port} is no port")
        if self.max_waiting < 1:
            raise ConfigError("max_waiting must be at least 1")
        if self.max_waiting_tokens is not None and self.max_waiting_tokens < 1:
            raise ConfigError("max_waiting_tokens must be at least 1")
        if self.otlp_endpoint is not None and not is_endpoint(self.otlp_endpoint):
            raise ConfigError(f"otlp_endpoint must be a URL as http://collector:4318, not {self.otlp_endpoint!r}")
        if self.drain_s < 0:
            raise ConfigError("drain_s must not be negative")


def available_memory_bytes() -> int:
    """As Linux estimates it; elsewhere half of what the machine has."""
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return total_memory_bytes() // 2


def total_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
