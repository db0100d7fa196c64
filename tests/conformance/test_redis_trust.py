"""What others may put into Redis, and how much of it we leave there."""

from collections.abc import Iterator

import pytest

from replica.protocol.records import FLEET_TTL_S, SNAPSHOT_TTL_S, Snapshot
from replica.protocol.signing import Signer
from tests.fleet_rig import KEYS, rig
from tests.gateway.fakes import eventually, heartbeat
from tests.redis_servers import PROGRAMS, Server, running

SIGNER = Signer.of(b"a secret of the whole fleet")
OTHER = Signer.of(b"the secret of another fleet")
MIB = 1 << 20


@pytest.fixture(params=PROGRAMS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(request.param)
    with running(server):
        yield server


async def test_nobody_without_the_key_speaks_for_a_replica(server: Server) -> None:
    client = server.client()
    async with rig(server.url, signer=SIGNER) as made, rig(server.url, name="r1", signer=OTHER) as stranger:
        await made.follows(1)
        epoch = made.index.position("r0")
        assert epoch is not None
        fake = heartbeat("fake", url="http://10.0.0.1:1")
        client.sadd(KEYS.replicas, "fake")
        client.set(KEYS.heartbeat("fake"), fake.encode())
        delta = {"kind": "delta", "replica": "r0", "epoch": epoch[0], "seq": epoch[1] + 1, "added": bytes(8)}
        client.xadd(KEYS.stream, delta | {"removed": b"", "count": 2, "root": 1, "sig": bytes(16)})
        await eventually(lambda: made.seen.bad["signature"] >= 3)
        assert made.fleet.present() == ("r0",)
        await made.follows(2)
        assert stranger.fleet.present() == ("r1",)


async def test_a_signed_record_is_not_another_replica_s(server: Server) -> None:
    client = server.client()
    async with rig(server.url, signer=SIGNER) as made:
        await made.follows(1)
        client.sadd(KEYS.replicas, "r1")
        client.set(KEYS.heartbeat("r1"), client.get(KEYS.heartbeat("r0")))
        await eventually(lambda: made.seen.bad["signature"] >= 1)
        assert made.fleet.present() == ("r0",)


async def test_gateways_without_the_key_take_signed_records(server: Server) -> None:
    """So that a running fleet can be given one: replicas first."""
    async with rig(server.url, signer=SIGNER, gateway_signer=Signer()) as made:
        await made.follows(1)
        assert not made.seen.bad


async def test_ten_megabytes_are_not_even_read(server: Server) -> None:
    client = server.client()
    async with rig(server.url) as made:
        await made.follows(1)
        before = client.info("stats")["total_net_output_bytes"]
        client.sadd(KEYS.replicas, "big")
        client.set(KEYS.heartbeat("big"), bytes(10 * MIB))
        await eventually(lambda: made.seen.bad["size"] >= 1)
        client.delete(KEYS.heartbeat("big"))
        pipeline = client.pipeline()
        pipeline.set(KEYS.snapshot("r0"), Snapshot("e1", 1, "0-0", ()).encode() + bytes(10 * MIB))
        pipeline.delete(KEYS.stream)
        pipeline.execute()
        await made.follows(2)
        assert client.info("stats")["total_net_output_bytes"] < before + MIB


async def test_what_a_replica_leaves_in_redis(server: Server) -> None:
    client = server.client()
    blocks = 50_000
    async with rig(server.url, signer=SIGNER) as made:
        made.change(*((number * 0x9E3779B97F4A7C15) % 2**64 for number in range(blocks)))
        await eventually(made.agrees, 15)
        # Until now the blocks are in the stream, as changes.
        client.set(KEYS.snapshot_wanted("r0"), b"1")
        await eventually(lambda: not client.exists(KEYS.snapshot_wanted("r0")))
        usage = client.memory_usage(KEYS.snapshot("r0"), samples=0)
        assert usage is not None
        print("bytes a block", usage / blocks)
        assert usage / blocks < 12
        await eventually(lambda: all(client.pttl(key) > 0 for key in client.scan_iter("*")))
        lives = {key: client.pttl(key) for key in client.scan_iter("*")}
        assert max(lives.values()) <= FLEET_TTL_S * 1000
        assert lives[KEYS.snapshot("r0").encode()] <= SNAPSHOT_TTL_S * 1000
    left = {key for key in client.scan_iter("*")}
    assert left == {KEYS.stream.encode()}
