"""Digests and heartbeats -> Redis, from a thread of its own. The engine is never made to wait."""

import logging
import random
import threading
from collections.abc import Callable

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from replica.cache.manager import CacheEvents
from replica.digest import Digest
from replica.protocol.records import (
    HEARTBEAT_PERIOD_S,
    HEARTBEAT_TTL_S,
    STREAM_MAX_ENTRIES,
    Heartbeat,
    Keys,
    StateChange,
    StreamFields,
)

_LOG = logging.getLogger(__name__)
_BATCH_S = 0.02
_TIMEOUT_S = 1.0
_MAX_BACKOFF_S = 2.0


class RedisUnreachable(Exception):
    """At start only; later the publisher waits for Redis to come back."""


class IdTaken(Exception):
    """A live replica has this id."""


def connect(url: str) -> redis.Redis:
    """Raises RedisUnreachable, also for a malformed URL or wrong credentials."""
    try:
        client = redis.Redis.from_url(
            url,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
        client.ping()
    except (redis.RedisError, ValueError, OSError) as error:
        raise RedisUnreachable(f"Redis at {_without_password(url)}: {error}") from error
    return client


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return scheme + separator + rest.rpartition("@")[2]


class Publisher:
    def __init__(self, client: redis.Redis, fleet: str, digest: Digest, heartbeat: Callable[[str], Heartbeat]) -> None:
        """`heartbeat` gives the current one for an epoch. Raises IdTaken, RedisUnreachable."""
        self._redis = client
        self._keys = Keys(fleet)
        self._digest = digest
        self._heartbeat = heartbeat
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        try:
            taken = client.exists(self._keys.heartbeat(digest.replica))
        except redis.RedisError as error:
            raise RedisUnreachable(f"Redis: {error}") from error
        if taken:
            raise IdTaken(f"a replica with the id {digest.replica} is alive in the fleet {fleet}")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Leaves the fleet: gateways are told at once."""
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def beat_soon(self) -> None:
        """The state has changed: tell the fleet now."""
        self._wake.set()

    def cache_changed(self, events: CacheEvents) -> None:
        with self._lock:
            self._digest.change(events.added, events.removed)

    def cache_replaced(self) -> None:
        with self._lock:
            self._digest.restart()
        self._wake.set()

    def _run(self) -> None:
        backoff = 0.0
        while not self._stopping:
            try:
                self._join()
                backoff = 0.0
                self._publish_until_stopped()
            except redis.RedisError as error:
                if not backoff:
                    _LOG.warning("Redis is unreachable, serving on without it: %s", error)
                backoff = min(_MAX_BACKOFF_S, backoff * 2 or 0.05)
                self._wake.wait(backoff * random.uniform(0.5, 1.5))
                # What woke us is said when we join again; left set, no wait would wait any more.
                self._wake.clear()
        try:
            self._leave()
        except redis.RedisError as error:
            _LOG.warning("could not leave the fleet, its heartbeat will expire: %s", error)

    def _publish_until_stopped(self) -> None:
        batches_per_beat = round(HEARTBEAT_PERIOD_S / _BATCH_S)
        while not self._stopping:
            for _ in range(batches_per_beat):
                if self._wake.wait(_BATCH_S):
                    break
                self._publish_changes()
            state_changed = self._wake.is_set() and not self._stopping
            self._wake.clear()
            # Whoever reads the heartbeat of a new epoch looks for its snapshot: that must be there first.
            self._publish_changes()
            self._beat(state_changed)

    def _join(self) -> None:
        """Says all anew: what Redis holds of us after a fresh start or a lost connection is unknown."""
        self._redis.sadd(self._keys.replicas, self._digest.replica)
        with self._lock:
            self._digest.snapshot_due = True
        self._publish_changes(even_if_none=True)
        self._beat(state_changed=True)

    def _publish_changes(self, even_if_none: bool = False) -> None:
        """A snapshot that is due goes first; the delta after it shows readers whether they have it all."""
        with self._lock:
            snapshot = self._digest.snapshot() if self._digest.snapshot_due else None
            changes = even_if_none or snapshot is not None or self._digest.has_changes
            delta = self._digest.next_delta() if changes else None
        if snapshot is not None:
            self._redis.set(self._keys.snapshot(self._digest.replica), snapshot.encode())
        if delta is not None:
            self._add_to_stream(delta.encode())

    def _beat(self, state_changed: bool) -> None:
        """The heartbeat, and what we must know in return: whether our snapshot is gone or a reader asks for one."""
        replica = self._digest.replica
        beat = self._heartbeat(self._digest.epoch).encode()
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.set(self._keys.heartbeat(replica), beat, px=int(HEARTBEAT_TTL_S * 1000))
        pipeline.sadd(self._keys.replicas, replica)
        pipeline.exists(self._keys.snapshot(replica))
        pipeline.getdel(self._keys.snapshot_wanted(replica))
        *_, snapshot_exists, wanted = pipeline.execute()
        if not snapshot_exists or wanted:
            with self._lock:
                self._digest.snapshot_due = True
        if state_changed:
            self._add_to_stream(StateChange(replica).encode())

    def _leave(self) -> None:
        replica = self._digest.replica
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.delete(self._keys.heartbeat(replica), self._keys.snapshot(replica))
        pipeline.srem(self._keys.replicas, replica)
        pipeline.execute()
        self._add_to_stream(StateChange(replica).encode())

    def _add_to_stream(self, fields: StreamFields) -> None:
        entry = self._redis.xadd(self._keys.stream, fields, maxlen=STREAM_MAX_ENTRIES, approximate=True)
        assert isinstance(entry, bytes)
        self._digest.stream_id = entry.decode()
