"""A Redis URL, taken apart: where Redis is, how to be let in, and what may be shown of that.

    redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]
    unix://[USER[:PASSWORD]@]/PATH[?db=DB]
    redis+sentinel://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…]/SERVICE[/DB]
    redis+cluster://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…]

`rediss` instead of `redis` speaks TLS. Options, as `?NAME=VALUE&…`:

    password_file                          read at each connection, so that a password may change while we run
    ssl_ca_certs                           file of the authorities to trust; else the system's
    ssl_certfile, ssl_keyfile              our own certificate and its key
    ssl_check_hostname=no                  any name in a certificate that is otherwise trusted
    ssl_cert_reqs=none                     any certificate at all: whoever is in between may read and change everything
    sentinel_username, sentinel_password_file   for the sentinels themselves
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

Kind = Literal["standalone", "unix", "sentinel", "cluster"]
Node = tuple[str, int]

_SCHEMES: dict[str, Kind] = {"redis": "standalone", "redis+sentinel": "sentinel", "redis+cluster": "cluster"}
_PORTS: dict[Kind, int] = {"standalone": 6379, "unix": 0, "sentinel": 26379, "cluster": 6379}
_TLS_OPTIONS = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname", "ssl_cert_reqs"}
_SENTINEL_OPTIONS = {"sentinel_username", "sentinel_password_file"}
_YES_NO = {"yes": True, "true": True, "no": False, "false": False}


class RedisUrlError(ValueError):
    """The URL is wrong; the message holds no secret."""


@dataclass(frozen=True, slots=True)
class Tls:
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    check_hostname: bool = True
    verify: bool = True


@dataclass(frozen=True, slots=True)
class RedisUrl:
    kind: Kind
    nodes: tuple[Node, ...] = ()
    """Of Redis, or of the sentinels, or some of the cluster."""
    path: str = ""
    """Of the unix socket."""
    service: str = ""
    """Sentinel's name for the group of servers."""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: Path | None = None
    tls: Tls | None = None
    sentinel_username: str | None = None
    sentinel_password_file: Path | None = None

    def __str__(self) -> str:
        """For messages: without user, password and options."""
        where = self.path or ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.nodes
        )
        scheme = "unix" if self.kind == "unix" else "rediss" if self.tls else "redis"
        kind = "" if self.kind in ("unix", "standalone") else f"+{self.kind}"
        service = f"/{self.service}" if self.service else ""
        return f"{scheme}{kind}://{where}{service}" + (f"/{self.db}" if self.db else "")


def parse_redis_url(url: str) -> RedisUrl:
    """Raises RedisUrlError."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise RedisUrlError("it is no URL") from error
    kind, encrypted = _kind(parts.scheme)
    _check_options(kind, encrypted, options)
    login, _, hosts = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    service, db = _service_and_db(kind, parts.path, options)
    if kind == "unix" and not parts.path.strip("/"):
        raise RedisUrlError("unix:// needs a path")
    return RedisUrl(
        kind=kind,
        nodes=() if kind == "unix" else tuple(_node(part, _PORTS[kind]) for part in _hosts(kind, hosts)),
        path=unquote(parts.path) if kind == "unix" else "",
        service=service,
        db=db,
        username=unquote(username) or None,
        password=unquote(password) or None,
        password_file=_file(options, "password_file"),
        tls=_tls(options) if encrypted else None,
        sentinel_username=options.get("sentinel_username"),
        sentinel_password_file=_file(options, "sentinel_password_file"),
    )


def without_secret(url: str) -> str:
    """For messages, whether the URL is right or not."""
    try:
        return str(parse_redis_url(url))
    except RedisUrlError:
        return "the Redis URL"


def _kind(scheme: str) -> tuple[Kind, bool]:
    if scheme == "unix":
        return "unix", False
    encrypted = scheme == "rediss" or scheme.startswith("rediss+")
    plain = scheme.replace("rediss", "redis", 1) if encrypted else scheme
    if plain not in _SCHEMES:
        raise RedisUrlError(
            f"it must begin with redis://, rediss://, unix://, {' or '.join(f'{s}://' for s in list(_SCHEMES)[1:])}"
        )
    return _SCHEMES[plain], encrypted


def _check_options(kind: Kind, encrypted: bool, options: dict[str, str]) -> None:
    known = {"db", "password_file"} | (_TLS_OPTIONS if encrypted else set())
    known |= _SENTINEL_OPTIONS if kind == "sentinel" else set()
    for name in options:
        if name in _TLS_OPTIONS and not encrypted:
            raise RedisUrlError(f"{name} needs rediss://")
        if name not in known:
            raise RedisUrlError(f"unknown option {name!r}")


def _hosts(kind: Kind, hosts: str) -> list[str]:
    parts = hosts.split(",")
    if not all(parts):
        raise RedisUrlError("a host is missing")
    if kind == "standalone" and len(parts) > 1:
        raise RedisUrlError("several hosts need redis+sentinel:// or redis+cluster://")
    return parts


def _node(text: str, default_port: int) -> Node:
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError as error:
        raise RedisUrlError(f"{text!r} is no HOST:PORT") from error
    if not parts.hostname or parts.path:
        raise RedisUrlError(f"{text!r} is no HOST:PORT")
    return unquote(parts.hostname), default_port if port is None else port


def _service_and_db(kind: Kind, path: str, options: dict[str, str]) -> tuple[str, int]:
    """What the path says; of a unix socket only the option names the database."""
    names = [] if kind == "unix" else [unquote(part) for part in path.split("/") if part]
    service = names.pop(0) if kind == "sentinel" and names else ""
    if kind == "sentinel" and not service:
        raise RedisUrlError("redis+sentinel:// needs the name of the service: …/SERVICE")
    database = options.get("db", names.pop(0) if names else "0")
    if names or not (database.isascii() and database.isdigit()):
        raise RedisUrlError(f"{'/'.join([database, *names])!r} is no database number")
    if kind == "cluster" and int(database):
        raise RedisUrlError("a cluster has no databases")
    return service, int(database)


def _tls(options: dict[str, str]) -> Tls:
    requirement = options.get("ssl_cert_reqs", "required")
    if requirement not in ("required", "none"):
        raise RedisUrlError(f"ssl_cert_reqs must be required or none, not {requirement!r}")
    check_hostname = options.get("ssl_check_hostname", "yes").lower()
    if check_hostname not in _YES_NO:
        raise RedisUrlError(f"ssl_check_hostname must be yes or no, not {check_hostname!r}")
    files: dict[str, Any] = {
        name: str(path) if (path := _file(options, option)) else None
        for name, option in (("ca_file", "ssl_ca_certs"), ("cert_file", "ssl_certfile"), ("key_file", "ssl_keyfile"))
    }
    verify = requirement == "required"
    return Tls(**files, verify=verify, check_hostname=verify and _YES_NO[check_hostname])


def _file(options: dict[str, str], name: str) -> Path | None:
    if name not in options:
        return None
    path = Path(options[name])
    if not path.is_file():
        raise RedisUrlError(f"{name}: there is no file {str(path)!r}")
    return path
