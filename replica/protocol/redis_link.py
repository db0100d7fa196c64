"""One connection to the server that holds the fleet's keys, however Redis is set up.

All keys of a fleet lie in one hash slot, so a cluster is, to us, the one server that owns the slot, as Sentinel's
master is the one that may be written to. Which server that is, is asked at each connection. Nothing is retried in here:
any error ends the connection, and whoever holds it makes another, after a pause.
"""

import asyncio
import logging
import math
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from replica.protocol.redis_url import Node, RedisUrl

log = logging.getLogger(__name__)

CONNECT_S = 2.0
ASK_S = 1.0
"""For a sentinel or a node of a cluster to say who has the keys."""
VERIFY_PERIOD_S = 1.0
"""Between two questions to a sentinel, to each in turn, whether our master is still theirs."""
REPLIES_AT_ONCE = 20
"""Of a pipeline: 0.2 ms."""
REPEAT_S = 60.0
REASONS_MAX = 100
VERIFY_S = 0.3
"""For its answer: nothing else is read or written meanwhile."""

_PIPELINE = re.compile(r"^Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)
"""What the library puts before the server's words: the command, with all that was to be written."""
_WHAT_HAPPENED: tuple[tuple[type[RedisError], str], ...] = (
    (AuthenticationError, "user or password is wrong"),
    (NoPermissionError, "the user may not do that"),
    (OutOfMemoryError, "its memory is full (maxmemory)"),
    (ReadOnlyError, "it is a read-only copy of another server"),
    (AskError, "another node of the cluster has our keys now"),
    (ClusterDownError, "the cluster is down"),
)


def explain(error: BaseException) -> str:
    """What is wrong with Redis, in one line without a secret."""
    said = " ".join(_PIPELINE.sub("", str(error)).split())[:200].strip("()',\"") or type(error).__name__
    if isinstance(error, TimeoutError) and not str(error):
        return "it didn't answer in time"
    if isinstance(error, ResponseError) and "WRONGTYPE" in said:
        return f"a key of ours holds something else: {said}"
    if "NOAUTH" in said:
        return "it wants a password"
    for kind, meaning in _WHAT_HAPPENED:
        if isinstance(error, kind):
            return f"{meaning}: {said}"
    return said


def being_cancelled() -> bool:
    """NOTE: up to Python 3.11 `asyncio.wait_for`, in the Redis client, swallows a cancellation that comes just as a
    reply does, so the exception alone can't be relied on."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Complaints:
    """What was logged lately: a loss is tried again many times, and may come at once after each success."""

    def __init__(self) -> None:
        self._said_at: dict[str, float] = {}

    def is_new(self, reason: str, now: float) -> bool:
        """Whether to log it: for the first time in REPEAT_S."""
        if now < self._said_at.get(reason, -math.inf) + REPEAT_S:
            return False
        if len(self._said_at) >= REASONS_MAX:
            self._said_at.clear()
        self._said_at[reason] = now
        return True


class RedisLink:
    """Use it as an async context manager; `redis` is the connection. Raises RedisError, OSError or TimeoutError."""

    # NOTE: the library's types are unions over protocols and decodings, so they are given up here, once.
    redis: Any

    def __init__(self, url: RedisUrl, key: str, reply_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`key`: any of those that will be used. `reply_s`: how long a reply may take, a blocking read's as well."""
        self._url = url
        self._reply_s = reply_s
        self._slot = key_slot(key.encode())
        self._clock = clock
        self._node: Node | None = None
        self._failovers = 0
        """As of Sentinel's count, when the master was asked for."""
        self._verified_at = 0.0
        self._verified = 0

    async def __aenter__(self) -> "RedisLink":
        if self._url.kind != "unix":
            self._node = await self._find()
        self._verified_at = self._clock()
        self.redis = _client(self._url, self._node, CONNECT_S, self._reply_s)
        try:
            await self.redis.ping()
            if self._url.kind == "sentinel":
                await self._check_role()
        except BaseException:
            await self.redis.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.redis.aclose()

    async def verify(self) -> None:
        """Call it now and then. A master that is cut off from its sentinels answers on as if nothing were, and what it
        is told is lost: raises ConnectionError where one of them names another."""
        if self._url.kind != "sentinel" or self._clock() < self._verified_at + VERIFY_PERIOD_S:
            return
        self._verified_at = self._clock()
        self._verified += 1
        try:
            sentinel = self._url.nodes[self._verified % len(self._url.nodes)]
            failovers, node = await _ask_sentinel(self._url, sentinel, VERIFY_S)
        except (RedisError, OSError, TimeoutError):
            return
        if node != self._node and failovers >= self._failovers:
            raise RedisConnectionError(f"a sentinel names another master, {node[0]}:{node[1]}")

    async def warn_of_eviction(self) -> None:
        """Where Redis may throw away our keys to make room, replicas vanish at random. It may keep that to itself."""
        try:
            memory = await self.redis.info("memory")
        except NoPermissionError:
            return
        policy = memory.get("maxmemory_policy", "noeviction")
        if memory.get("maxmemory", 0) and policy != "noeviction":
            log.warning("Redis at %s evicts keys when full (maxmemory-policy %s): use noeviction", self._url, policy)

    async def _find(self) -> Node:
        url = self._url
        if url.kind == "sentinel":
            self._failovers, node = await _master(url)
            return node
        if url.kind == "cluster":
            return await _owner(url, self._slot)
        return url.nodes[0]

    async def _check_role(self) -> None:
        try:
            role = (await self.redis.execute_command("ROLE"))[0]
        except NoPermissionError:
            return
        if role != b"master":
            raise ReadOnlyError("the sentinels' master is none yet")


async def _master(url: RedisUrl) -> tuple[int, Node]:
    """As the sentinel says that knows of the latest failover: one that was cut off names the master of before it."""
    asked = (_ask_sentinel(url, node, ASK_S) for node in url.nodes)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    known = [answer for answer in answers if not isinstance(answer, BaseException)]
    if not known:
        raise RedisConnectionError(f"no sentinel knows {url.service}: {_first_reason(answers)}")
    return max(known)


async def _ask_sentinel(url: RedisUrl, node: Node, within_s: float) -> tuple[int, Node]:
    """Failovers so far, and the master."""
    login = (url.sentinel_username, _read(url.sentinel_password_file))
    sentinel = _client(url, node, within_s, within_s, login=login, database=0)
    try:
        async with asyncio.timeout(within_s):
            reply = await sentinel.execute_command("SENTINEL", "MASTER", url.service)
        fields = dict(zip(reply[::2], reply[1::2], strict=True))
        return int(fields[b"config-epoch"]), (fields[b"ip"].decode(), int(fields[b"port"]))
    except (KeyError, ValueError) as error:
        raise RedisConnectionError("that is no sentinel's answer") from error
    finally:
        await sentinel.aclose()


async def _owner(url: RedisUrl, slot: int) -> Node:
    """The master of the slot, as the first node says that answers."""
    reasons: list[BaseException] = []
    for node in url.nodes:
        client = _client(url, node, ASK_S, ASK_S, database=0)
        try:
            async with asyncio.timeout(2 * ASK_S):
                ranges = await client.execute_command("CLUSTER", "SLOTS")
            return _owner_among(ranges, slot, node)
        except (RedisError, OSError, TimeoutError) as error:
            reasons.append(error)
        finally:
            await client.aclose()
    raise RedisConnectionError(f"no node of the cluster knows where our keys are: {_first_reason(reasons)}")


def _owner_among(ranges: Sequence[Any], slot: int, asked: Node) -> Node:
    for first, last, master, *_ in ranges:
        if first <= slot <= last:
            # A node that doesn't know its own address leaves it out.
            return (master[0] or b"").decode() or asked[0], int(master[1])
    raise RedisConnectionError(f"nobody serves slot {slot}")


def _first_reason(answers: Sequence[object]) -> str:
    return next((explain(answer) for answer in answers if isinstance(answer, BaseException)), "no answer")


class _Once(AbstractConnection):
    """A connection that is lost stays lost. The library would make another and say nothing, and what was published
    meanwhile, or the server that it was told to, would be missed.

    And it lets others have the event loop between a pipeline's replies: the library takes those that are there already
    in one go."""

    _connected = False
    _replies = 0

    async def _connect(self) -> None:
        if self._connected:
            raise RedisConnectionError("the connection was lost")
        await super()._connect()  # type: ignore[no-untyped-call,safe-super]
        self._connected = True

    async def read_response(self, *args: Any, **options: Any) -> Any:
        self._replies += 1
        if self._replies % REPLIES_AT_ONCE == 0:
            await asyncio.sleep(0)
        return await super().read_response(*args, **options)


class _Tcp(_Once, Connection): ...


class _TlsTcp(_Once, SSLConnection): ...


class _Unix(_Once, UnixDomainSocketConnection): ...


def _client(
    url: RedisUrl,
    node: Node | None,
    connect_s: float,
    reply_s: float,
    *,
    login: tuple[str | None, str | None] | None = None,
    database: int | None = None,
) -> Any:
    username, password = login or (url.username, _read(url.password_file) or url.password)
    place: dict[str, Any] = {"path": url.path} if node is None else {"host": node[0], "port": node[1]}
    if url.tls is not None:
        place |= {
            "ssl_ca_certs": url.tls.ca_file,
            "ssl_certfile": url.tls.cert_file,
            "ssl_keyfile": url.tls.key_file,
            "ssl_cert_reqs": "required" if url.tls.verify else "none",
            "ssl_check_hostname": url.tls.check_hostname,
        }
    # NOTE: `single_connection_client` isn't one: its pipelines have another.
    pool: Any = ConnectionPool(
        connection_class=_Unix if node is None else _TlsTcp if url.tls is not None else _Tcp,
        max_connections=1,
        **place,
        db=url.db if database is None else database,
        username=username,
        password=password,
        decode_responses=False,
        protocol=2,
        socket_timeout=reply_s,
        socket_connect_timeout=connect_s,
        retry=Retry(NoBackoff(), 0),
    )
    return Redis.from_pool(pool)


def _read(file: Path | None) -> str | None:
    """Raises ConnectionError."""
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise RedisConnectionError(f"the password file {file} can't be read") from error
