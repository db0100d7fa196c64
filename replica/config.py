"""Settings of a replica, checked; the only reader of the machine's memory and cores."""

import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path


class ConfigError(ValueError):
    """A setting is wrong; the message names it."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    weights: str = "int8"
    """int8 (quantised by row and group of columns) or fp32 (the reference)."""
    threads: int = 1
    """Compute threads. Over all replicas of a machine they shouldn't exceed its cores."""
    kv_memory_bytes: int | None = None
    """None: a fifth of the memory that is available at start."""
    max_step_tokens: int = 256
    """Tokens computed in one step. A step this long is what a decode may have to wait for; on one CPU core larger
    steps hardly gain throughput."""
    max_running: int = 64
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        if self.weights not in ("int8", "fp32"):
            raise ConfigError(f"weights: {self.weights!r} is neither int8 nor fp32")
        cores = os.cpu_count() or 1
        if not 1 <= self.threads <= cores:
            raise ConfigError(f"threads: {self.threads} is not between 1 and this machine's {cores} cores")
        for name in ("max_step_tokens", "max_running"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")


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
    redis_url: str | None = None
    """None: serve alone, unknown to any gateway."""
    fleet: str = "default"
    max_waiting: int = 1024
    """Requests waiting in the queue; more are refused with 503."""
    drain_s: float = 30.0
    engine: EngineConfig = field(default_factory=EngineConfig)

    def __post_init__(self) -> None:
        if not self.id or not self.id.isascii() or not all(c.isalnum() or c in "-_." for c in self.id):
            raise ConfigError(f"id: {self.id!r} may hold only letters, digits, '-', '_' and '.'")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port: {self.port} is no port")
        if self.max_waiting < 1:
            raise ConfigError("max_waiting must be at least 1")
        if self.drain_s < 0:
            raise ConfigError("drain_s must not be negative")


def available_memory_bytes() -> int:
    """As Linux estimates it; elsewhere half of what the machine has."""
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
