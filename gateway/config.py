"""Settings of a gateway: frozen, validated at birth, read by nobody else from flags or environment."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from gateway.addresses import DEFAULT_NETWORKS, AddressList
from gateway.hold.bounds import Bounds
from gateway.index.prefix_index import MAX_BLOCKS
from gateway.served import ServedModel, check_served
from gateway.upstream_keys import UpstreamKeys
from gateway.upstream_urls import named_upstreams
from replica.protocol.otel import is_endpoint
from replica.protocol.redis_url import RedisUrlError, parse_redis_url
from replica.protocol.signing import Signer

MIB = 1 << 20
MAX_WORKERS = 256
LOG_LEVELS = ("debug", "info", "warning", "error")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-zA-Z0-9.\-\[\]:]+")


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
    keep_alive_s: float = 15.0
    """Silence within a stream, or before it, after which its client gets a comment."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not value > 0:
                raise ConfigError(f"{item.name} must be more than 0, not {value}")


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    model: Path
    """Folder in Hugging Face format; only its text side is read."""
    redis_url: str = field(default="", repr=False)
    """See replica/protocol/redis_url.py. Empty: none, and all there is are `upstreams`."""
    upstreams: tuple[str, ...] = ()
    """URLs of engines that aren't ours and publish nothing; see probes.py."""
    models: tuple[ServedModel, ...] = ()
    """Several, in place of `model`, `model_name`, `fleet` and `upstreams`."""
    upstream_keys: UpstreamKeys = field(default_factory=UpstreamKeys)
    """What they ask of us; see upstream_keys.py."""
    probe_interval_s: float = 1.0
    """How often each of them is asked whether it is there."""
    model_name: str | None = None
    """The name clients use; None: the folder's own."""
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    """Processes that serve on that port; see workers.py."""
    reuse_port: bool = False
    """Other gateways may serve on it as well: one that is to take this one's place."""
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
    admin_port: int | None = None
    """What operators ask is answered there, and only there; None: on the one port."""
    admin_host: str = "127.0.0.1"
    keys_file: Path | None = None
    """API keys; see tenants/key_file.py. None: everybody may."""
    isolate_tenants: bool = True
    """Where there are keys: tenants find only their own cached prefixes, and public ones."""
    public_prompts: Mapping[str, str] = field(default_factory=dict, repr=False)
    """System prompts by name that tenants share; see public_prompts.py."""
    cors_origins: tuple[str, ...] = ()
    """Web pages of these origins may ask, or of all (`*`)."""
    log_level: str = "info"
    files: tuple[Path, ...] = ()
    """Where all this was read from; see reload.py."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    body_limit: int = 8 * MIB
    """Bytes, after decompression."""
    retry_budget: float = 0.2
    """Requests being retried at any moment, as a share of all live ones; one is always allowed."""
    tokenise_threads: int = 2
    index_max_blocks: int = MAX_BLOCKS
    """Distinct KV blocks in the index. A replica that finds no room is routed to by its load alone."""
    max_queued_tokens: int | None = None
    """Uncached prompt tokens that wait, here and at the replicas; with more, requests are refused. None: as many as the
    fleet prefills in `first_byte_s`."""
    record: Path | None = None
    """A trace of all requests goes there; see recording/."""
    record_max_bytes: int = 256 * MIB
    """Of that file; there may be one more, the one before."""
    access_log: str = "off"
    """A file, `-` for standard output, or `off`; see access_log.py."""
    otlp_endpoint: str | None = None
    """An OpenTelemetry collector's URL, for spans; see replica/protocol/otel.py."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be between 0 and 65535, not {self.port}")
        if not 1 <= self.workers <= MAX_WORKERS:
            raise ConfigError(f"workers must be between 1 and {MAX_WORKERS}, not {self.workers}")
        if self.admin_port is not None and not (0 <= self.admin_port <= 65535):
            raise ConfigError(f"admin_port must be between 0 and 65535, not {self.admin_port}")
        if self.admin_port and self.admin_port == self.port:
            raise ConfigError("admin_port must be another than port")
        if self.admin_port is not None and self.admin_key is None and not is_loopback(self.admin_host):
            raise ConfigError("admin_host: to serve there beyond this machine needs an admin key (admin_key_file)")
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(f"cors_origins: {origin!r} is no origin, like https://example.org, and no *")
        if self.log_level not in LOG_LEVELS:
            raise ConfigError(f"log_level must be one of {', '.join(LOG_LEVELS)}, not {self.log_level!r}")
        for served in self.served:
            where = f"models.{served.name}." if self.models else ""
            if not served.fleet or set(served.fleet) & set("{}: \n"):
                raise ConfigError(f"{where}fleet must be a plain name, not {served.fleet!r}")
            if not self.redis_url and not served.upstreams:
                raise ConfigError(f"redis_url or {where}upstreams: one of them must say where replicas are")
            try:
                named_upstreams(served.upstreams)
            except ValueError as error:
                raise ConfigError(f"{where}upstreams: {error}") from error
        try:
            check_served(self.served)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        try:
            if self.redis_url:
                parse_redis_url(self.redis_url)
        except RedisUrlError as error:
            raise ConfigError(f"redis_url: {error}") from error
        if not self.probe_interval_s > 0:
            raise ConfigError(f"probe_interval_s must be more than 0, not {self.probe_interval_s}")
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
        if not self.access_log:
            raise ConfigError("access_log must be a file, - or off")
        if self.otlp_endpoint is not None and not is_endpoint(self.otlp_endpoint):
            raise ConfigError(f"otlp_endpoint must be a URL as http://collector:4318, not {self.otlp_endpoint!r}")
        if self.record_max_bytes < MIB:
            raise ConfigError(f"record_max_bytes must be at least {MIB}, not {self.record_max_bytes}")
        if self.max_queued_tokens is not None and self.max_queued_tokens < 1:
            raise ConfigError(f"max_queued_tokens must be at least 1, not {self.max_queued_tokens}")
        if self.index_max_blocks < 1:
            raise ConfigError(f"index_max_blocks must be at least 1, not {self.index_max_blocks}")

    @property
    def served(self) -> tuple[ServedModel, ...]:
        """At least one."""
        if self.models:
            return self.models
        name = self.model_name or self.model.name
        return (ServedModel(self.model, name, self.fleet, upstreams=self.upstreams),)

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.max_queued_tokens, self.timeouts.first_byte_s)

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
