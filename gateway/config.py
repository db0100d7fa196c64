"""Settings of a gateway: frozen, validated at birth, read by nobody else from flags or environment."""

import ipaddress
from dataclasses import dataclass, field, fields
from pathlib import Path

from gateway.addresses import DEFAULT_NETWORKS, AddressList
from gateway.index.prefix_index import MAX_BLOCKS
from replica.protocol.redis_url import RedisUrlError, parse_redis_url
from replica.protocol.signing import Signer

MIB = 1 << 20


class ConfigError(ValueError):
    """A setting is out of its range; the message names it."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """All in seconds."""

    connect_s: float = 2.0
    first_byte_s: float = 120.0
    """A replica sends nothing before the first token, so this bounds its queue and prefill together."""
    idle_s: float = 60.0
    """Longest silence within an answer that has begun."""
    queue_s: float = 10.0
    """How long a request waits for a replica to appear."""
    grace_s: float = 30.0
    """How long streams in flight may go on after SIGTERM."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not value > 0:
                raise ConfigError(f"{item.name} must be more than 0, not {value}")


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    model: Path
    """Folder in Hugging Face format; only its text side is read."""
    redis_url: str = field(repr=False)
    """See replica/protocol/redis_url.py."""
    model_name: str | None = None
    """The name clients use; None: the folder's own."""
    host: str = "127.0.0.1"
    port: int = 8000
    fleet: str = "default"
    signer: Signer = field(default_factory=Signer)
    """With the fleet's key, if it has one."""
    replica_networks: tuple[str, ...] = DEFAULT_NETWORKS
    """Where replicas may live; see addresses.py."""
    policy: str = "ttft"
    shadow_policy: str | None = None
    """Decides along, and moves no traffic."""
    policy_file: Path | None = None
    """Names both instead, also while the gateway runs; see policies.py."""
    admin_key: str | None = field(default=None, repr=False)
    """Without one, only this machine may change how the gateway works."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    body_limit: int = 8 * MIB
    """Bytes, after decompression."""
    retry_budget: float = 0.2
    """Requests being retried at any moment, as a share of all live ones; one is always allowed."""
    tokenise_threads: int = 2
    index_max_blocks: int = MAX_BLOCKS
    """Distinct KV blocks in the index. A replica that finds no room is routed to by its load alone."""
    record: Path | None = None
    """A trace of all requests goes there; see recording/."""
    record_max_bytes: int = 256 * MIB
    """Of that file; there may be one more, the one before."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be between 0 and 65535, not {self.port}")
        if not self.fleet or set(self.fleet) & set("{}: \n"):
            raise ConfigError(f"fleet must be a plain name, not {self.fleet!r}")
        try:
            parse_redis_url(self.redis_url)
        except RedisUrlError as error:
            raise ConfigError(f"redis_url: {error}") from error
        try:
            AddressList(self.replica_networks)
        except ValueError as error:
            raise ConfigError(f"replica_networks: {error}") from error
        if self.body_limit < 1:
            raise ConfigError(f"body_limit must be at least 1 byte, not {self.body_limit}")
        if not 0 <= self.retry_budget <= 1:
            raise ConfigError(f"retry_budget must be between 0 and 1, not {self.retry_budget}")
        if self.tokenise_threads < 1:
            raise ConfigError(f"tokenise_threads must be at least 1, not {self.tokenise_threads}")
        if self.record_max_bytes < MIB:
            raise ConfigError(f"record_max_bytes must be at least {MIB}, not {self.record_max_bytes}")
        if self.index_max_blocks < 1:
            raise ConfigError(f"index_max_blocks must be at least 1, not {self.index_max_blocks}")

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
