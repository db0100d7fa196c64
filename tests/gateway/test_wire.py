import asyncio

import pytest
from redis.exceptions import ResponseError

from gateway import wire as wire_module
from gateway.wire import BATCH, ZERO, StreamState, Wire
from replica.protocol.records import SNAPSHOT_HEAD_MAX_BYTES, Keys, Snapshot, split_snapshot
from replica.protocol.redis_url import parse_redis_url
from replica.protocol.signing import Signer
from tests.gateway.fakes import redis_client

KEY = Keys().snapshot("a")


def value(blocks: int, seq: int = 1, secret: bytes = b"") -> bytes:
    signer = Signer.of(secret) if secret else Signer()
    return signer.seal(KEY, Snapshot("e", seq, "0-0", range(seq, seq + blocks)).encode())


@pytest.mark.parametrize("blocks", [0, 1, 100, 128, 1000, 1001, 5000])
@pytest.mark.parametrize("secret", [b"", b"a secret of the whole fleet"])
async def test_a_snapshot_is_read_whole(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, blocks: int, secret: bytes
) -> None:
    monkeypatch.setattr(wire_module, "PIECE_BYTES", 8000)
    written = value(blocks, secret=secret)
    async with redis_client(redis_url) as redis, Wire(parse_redis_url(redis_url), Keys()) as wire:
        await redis.set(KEY, written)
        assert await wire.snapshot("a") == split_snapshot(written)
        assert await wire.snapshot("b") is None


async def test_of_a_snapshot_that_is_too_long_only_the_beginning_is_read(redis_url: str) -> None:
    async with redis_client(redis_url) as redis, Wire(parse_redis_url(redis_url), Keys()) as wire:
        await redis.set(KEY, value(500) + bytes(10_000_000))
        found = await wire.snapshot("a")
        assert found is not None and sum(map(len, found)) == SNAPSHOT_HEAD_MAX_BYTES


async def test_a_snapshot_that_is_written_anew_meanwhile_is_none_or_one_of_the_two(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_module, "PIECE_BYTES", 4000)
    versions = [value(3000, seq) for seq in range(1, 100)]
    async with redis_client(redis_url) as redis, Wire(parse_redis_url(redis_url), Keys()) as wire:
        await redis.set(KEY, versions[0])

        async def write() -> None:
            for version in versions:
                await redis.set(KEY, version)

        writing = asyncio.create_task(write())
        found = [await wire.snapshot("a") for _ in range(60)]
        await writing
        assert await wire.snapshot("a") == split_snapshot(versions[-1])
        whole = {split_snapshot(version) for version in versions}
        assert {snapshot for snapshot in found if snapshot is not None} <= whole


async def test_of_each_stream_come_as_many_however_many_the_other_has(redis_url: str) -> None:
    async with redis_client(redis_url) as redis, Wire(parse_redis_url(redis_url), Keys()) as wire:
        assert await wire.next_entries(ZERO, ZERO, 0.01) == ([], [])
        for _ in range(BATCH + 5):
            await redis.xadd(Keys().intents, {"a": "b"})
        digests, told = await wire.next_entries(ZERO, ZERO, 1.0)
        assert (len(digests), len(told)) == (0, BATCH)
        await redis.xadd(Keys().stream, {"c": "d"})
        digests, told = await wire.next_entries(ZERO, told[-1][0], 1.0)
        assert [fields for _, fields in digests] == [{b"c": b"d"}]
        assert len(told) == 5
        assert len((await wire.next_entries(ZERO, None, 1.0))[1]) == 0


async def test_the_loss_of_the_gateways_stream_is_not_that_of_the_digests(redis_url: str) -> None:
    async with redis_client(redis_url) as redis, Wire(parse_redis_url(redis_url), Keys()) as wire:
        digests, told = await wire.stream_states()
        assert isinstance(told, StreamState)
        assert (digests.last, told.last) == (ZERO, ZERO)
        await redis.xadd(Keys().stream, {"c": "d"}, id="7-1")
        await redis.set(Keys().intents, "x")
        digests, told = await wire.stream_states()
        assert digests.last == (7, 1)
        assert isinstance(told, ResponseError)
        assert len((await wire.next_entries(ZERO, ZERO, 1.0))[0]) == 1
        await redis.delete(Keys().intents)
        await redis.set(Keys().stream, "x")
        with pytest.raises(ResponseError):
            await wire.next_entries(ZERO, ZERO, 1.0)
        with pytest.raises(ResponseError):
            await wire.stream_states()
