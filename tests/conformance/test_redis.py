"""Publisher and reader against real servers, in each way that Redis can be set up, and in each way it can be wrong."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.wire import Wire as GatewayWire
from replica.protocol.intents import Intents
from replica.protocol.records import HEARTBEAT_TTL_S
from replica.protocol.redis_url import parse_redis_url, without_secret
from replica.publisher import IdTaken, RedisUnreachable, check_id_is_free
from replica.wire import Wire as ReplicaWire
from tests.fleet_rig import KEYS, rig
from tests.gateway.fakes import eventually
from tests.redis_servers import PROGRAMS, VALKEY, Program, Server, free_port, running

REPLICA_RULES = "~ryokan:{default}:* +ping +select +xadd +set +getrange +del +exists +sadd +srem +srandmember +pexpire"
GATEWAY_RULES = (
    "~ryokan:{default}:* +ping +select +xread +xrange +xinfo|stream +srandmember +getrange +strlen +pttl +exists +set"
    " +xadd +pexpire"
)


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> Program:
    made: Program = request.param
    return made


@pytest.fixture
def server(program: Program) -> Iterator[Server]:
    server = Server(program)
    with running(server):
        yield server


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    """Lines at warning level with these words."""

    def with_words(words: str) -> list[str]:
        return [record.getMessage() for record in caplog.records if words in record.getMessage()]

    caplog.set_level(logging.WARNING)
    return with_words


async def start_error(url: str) -> str:
    """What a replica says that can't start."""
    with pytest.raises(RedisUnreachable) as caught:
        await check_id_is_free(lambda: ReplicaWire(parse_redis_url(url), KEYS), "r0", without_secret(url))
    return str(caught.value)


async def test_standalone_and_restarted(server: Server, warnings: Callable[[str], list[str]]) -> None:
    async with rig(server.url) as made:
        await made.follows(1, 2)
        with pytest.raises(IdTaken, match="r0"):
            await check_id_is_free(lambda: ReplicaWire(parse_redis_url(server.url), KEYS), "r0", server.address)
        server.kill()
        made.change(3)
        await eventually(lambda: not made.seen.up)
        assert made.routable
        server.start()
        await made.follows(4)
        assert made.routable
    assert len(warnings("lost Redis")) == 1
    assert len(warnings("can't publish")) == 1


async def test_over_a_unix_socket(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    server = Server(program, "--unixsocket", str(path))
    with running(server):
        async with rig(f"unix://{path}") as made:
            await made.follows(1)


async def test_users_need_no_more_rights_than_these(server: Server, warnings: Callable[[str], list[str]]) -> None:
    client = server.client()
    client.execute_command("ACL", "SETUSER", "replica", "on", ">geheim1", *REPLICA_RULES.split())
    client.execute_command("ACL", "SETUSER", "gateway", "on", ">geheim2", *GATEWAY_RULES.split())
    client.execute_command("ACL", "SETUSER", "default", "off")
    async with rig(f"redis://replica:geheim1@{server.address}", f"redis://gateway:geheim2@{server.address}") as made:
        await made.follows(1)
        with pytest.raises(IdTaken):
            url = parse_redis_url(f"redis://replica:geheim1@{server.address}")
            await check_id_is_free(lambda: ReplicaWire(url, KEYS), "r0", server.address)
        # A repair asks for a snapshot, and a leave takes all away.
        made.publisher.cache_replaced()
        made.held.clear()
        await made.follows(2)
        async with GatewayWire(parse_redis_url(f"redis://gateway:geheim2@{server.address}"), KEYS) as wire:
            await wire.add(Intents("g1").encode())
    assert not warnings("geheim")
    assert not warnings("may not")


async def test_a_missing_right_is_said_once_and_mended_when_given(
    server: Server, warnings: Callable[[str], list[str]]
) -> None:
    client = server.client()
    client.execute_command("ACL", "SETUSER", "replica", "on", ">geheim1", *REPLICA_RULES.split(), "-xadd")
    async with rig(f"redis://replica:geheim1@{server.address}", server.url) as made:
        made.change(1)
        await eventually(lambda: len(warnings("the user may not do that")) == 1)
        client.execute_command("ACL", "SETUSER", "replica", "+xadd")
        await made.follows(2)
    assert len(warnings("the user may not do that")) == 1
    assert not warnings("geheim")


async def test_a_wrong_password_at_start_is_one_clear_error(program: Program) -> None:
    server = Server(program, "--requirepass", "geheim")
    with running(server):
        assert "password" in await start_error(server.url)
        said = await start_error(f"redis://:falsch@{server.address}")
        assert "user or password is wrong" in said
        assert "falsch" not in said
        assert said.count("\n") == 0


async def test_a_password_that_changes_while_all_runs(
    program: Program, tmp_path: Path, warnings: Callable[[str], list[str]]
) -> None:
    server, file = Server(program, "--requirepass", "geheim1"), tmp_path / "password"
    file.write_text("geheim1\n")
    with running(server):
        url = f"redis://{server.address}?password_file={file}"
        async with rig(url) as made:
            await made.follows(1)
            client = server.client(password="geheim1")
            client.config_set("requirepass", "geheim2")
            client.client_kill_filter(_type="normal", skipme=True)
            await eventually(lambda: bool(warnings("user or password is wrong")))
            assert made.routable
            file.write_text("geheim2\n")
            await made.follows(2)
    assert not warnings("geheim")


@pytest.mark.parametrize("kind", ["stream", "replicas"])
async def test_a_key_of_another_type_is_said_and_mended_when_gone(
    server: Server, warnings: Callable[[str], list[str]], kind: str
) -> None:
    client = server.client()
    key = KEYS.stream if kind == "stream" else KEYS.replicas
    async with rig(server.url) as made:
        await made.follows(1)
        pipeline = client.pipeline()
        pipeline.delete(key)
        pipeline.set(key, "x")
        pipeline.execute()
        made.change(2)
        await eventually(lambda: bool(warnings("lost Redis") and warnings("can't publish")))
        assert made.routable
        client.delete(key)
        await made.follows(3)
        assert made.routable
    assert "a key of ours holds something else" in warnings("lost Redis")[0]
    assert "a key of ours holds something else" in warnings("can't publish")[0]
    assert len(warnings("can't publish")) == 1


async def test_the_gateways_stream_under_another_type_or_without_a_right_is_said_once_and_harms_no_digest(
    server: Server, warnings: Callable[[str], list[str]]
) -> None:
    client, heard = server.client(), list[Intents]()
    client.execute_command("ACL", "SETUSER", "g", "on", ">geheim", *GATEWAY_RULES.split())
    client.lpush(KEYS.intents, "x")
    async with rig(server.url, f"redis://g:geheim@{server.address}", on_intents=heard.append) as made:
        for number in range(3):
            await made.follows(number)
            await asyncio.sleep(0.3)
        assert len(warnings("can't hear where other gateways send requests: a key of ours holds something else")) == 1
        client.delete(KEYS.intents)
        async with GatewayWire(parse_redis_url(server.url), KEYS) as wire:

            async def is_heard() -> None:
                heard.clear()
                async with asyncio.timeout(8):
                    while not heard:
                        await wire.add(Intents("g1").encode())
                        await asyncio.sleep(0.02)

            await is_heard()
            # While it's being read.
            pipeline = client.pipeline()
            pipeline.delete(KEYS.intents)
            pipeline.lpush(KEYS.intents, "x")
            pipeline.execute()
            await made.follows(10)
            client.delete(KEYS.intents)
            await is_heard()
            client.execute_command("ACL", "SETUSER", "g", "resetkeys", "~" + KEYS.stream, "~" + KEYS.replicas, "~*:r0")
            await made.follows(11)
            await eventually(lambda: len(warnings("can't hear where other gateways send requests: the user may")) == 1)
            await made.follows(12)
            client.execute_command("ACL", "SETUSER", "g", "~*")
            await is_heard()
        assert made.seen.resyncs == {"join": 1}
    assert not warnings("lost Redis")
    assert len(warnings("can't hear")) == 2


@pytest.mark.parametrize("kind", ["snapshot", "heartbeat"])
async def test_one_replica_s_key_of_another_type_is_its_own_affair(server: Server, kind: str) -> None:
    client = server.client()
    key = KEYS.snapshot("bad") if kind == "snapshot" else KEYS.heartbeat("bad")
    async with rig(server.url) as made, rig(server.url, name="bad") as bad:
        await made.follows(1)
        await bad.follows(2)
        # Dropped, so that both have to be read anew.
        pipeline = client.pipeline()
        pipeline.delete(key, KEYS.stream)
        pipeline.lpush(key, "x")
        pipeline.execute()
        await made.follows(3)
        assert made.routable
        await bad.follows(4)


async def test_a_full_redis_stops_no_service(server: Server, warnings: Callable[[str], list[str]]) -> None:
    client = server.client()
    async with rig(server.url) as made:
        await made.follows(1)
        client.config_set("maxmemory", 1)
        made.change(2)
        await eventually(lambda: bool(warnings("its memory is full")))
        await asyncio.sleep(HEARTBEAT_TTL_S + 0.3)
        assert client.exists(KEYS.heartbeat("r0"))
        assert made.routable
        client.config_set("maxmemory", 0)
        await made.follows(3)
    assert len(warnings("its memory is full")) == 1


async def test_a_policy_that_evicts_our_keys_is_warned_of(server: Server, warnings: Callable[[str], list[str]]) -> None:
    client, url = server.client(), parse_redis_url(server.url)
    for policy, memory, warned in (("allkeys-lru", 0, 0), ("noeviction", 1 << 30, 0), ("allkeys-lru", 1 << 30, 1)):
        client.config_set("maxmemory-policy", policy)
        client.config_set("maxmemory", memory)
        async with GatewayWire(url, KEYS) as wire:
            await wire.warn_of_eviction()
        assert len(warnings("evicts keys")) == warned
    client.execute_command("ACL", "SETUSER", "u", "on", "nopass", "+ping", "+select")
    async with ReplicaWire(parse_redis_url(f"redis://u:x@{server.address}"), KEYS) as replica:
        await replica.warn_of_eviction()


async def test_a_master_that_becomes_a_read_only_copy(server: Server, warnings: Callable[[str], list[str]]) -> None:
    client = server.client()
    async with rig(server.url) as made:
        await made.follows(1)
        client.replicaof("127.0.0.1", 1)
        made.change(2)
        await eventually(lambda: len(warnings("can't publish")) == 1)
        assert "read-only copy" in warnings("can't publish")[0]
        client.replicaof("NO", "ONE")
        await made.follows(3)
    assert len(warnings("can't publish")) == 1


SENTINEL = """
sentinel monitor main {host} {port} 1
sentinel down-after-milliseconds main 300
sentinel failover-timeout main 3000
"""


async def test_sentinel_failover() -> None:
    master = Server(VALKEY)
    copy = Server(VALKEY, "--replicaof", "127.0.0.1", str(master.port))
    with running(master, copy):
        client = copy.client()
        await eventually(lambda: client.info("replication")["master_link_status"] == "up")
        sentinel = Server(VALKEY, sentinel=SENTINEL.format(host="127.0.0.1", port=master.port))
        with running(sentinel):
            watcher = sentinel.client()
            await eventually(lambda: watcher.sentinel_master("main")["num-slaves"] == 1)
            # The first one never answers.
            async with rig(f"redis+sentinel://127.0.0.1:1,{sentinel.address}/main") as made:
                await made.follows(1)
                master.kill()
                made.change(2)
                await eventually(lambda: client.info("replication")["role"] == "master", 15)
                await made.follows(3)
                assert made.routable
                assert client.exists(KEYS.heartbeat("r0"))


async def test_a_master_that_is_alive_but_no_longer_the_sentinels_is_left(program: Program) -> None:
    """It was cut off from them: nobody told it."""
    old, new = Server(program), Server(program)
    with running(old, new):
        config = "sentinel monitor main {host} {port} 1"
        sentinel = Server(program, sentinel=config.format(host="127.0.0.1", port=old.port))
        with running(sentinel):
            async with rig(f"redis+sentinel://{sentinel.address}/main") as made:
                await made.follows(1)
                watcher = sentinel.client()
                watcher.execute_command("SENTINEL", "REMOVE", "main")
                watcher.execute_command("SENTINEL", "MONITOR", "main", "127.0.0.1", new.port, 1)
                await eventually(lambda: bool(new.client().exists(KEYS.heartbeat("r0"))))
                await made.follows(2)
                assert made.routable


async def test_an_unknown_service_is_said(program: Program) -> None:
    sentinel = Server(program, sentinel="")
    with running(sentinel):
        assert "no sentinel knows other" in await start_error(f"redis+sentinel://{sentinel.address}/other")


async def test_a_cluster_whose_slot_moves(program: Program, warnings: Callable[[str], list[str]]) -> None:
    flags = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
    # NOTE: nodes talk to each other 10,000 ports further up.
    first, second = (Server(program, *flags, port=free_port(below=55_000)) for _ in range(2))
    with running(first, second):
        one, two = first.client(), second.client()
        one.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        one.execute_command("CLUSTER", "MEET", "127.0.0.1", second.port)
        await eventually(lambda: b"cluster_state:ok" in two.execute_command("CLUSTER", "INFO"), 15)
        async with rig(f"redis+cluster://127.0.0.1:1,{second.address}") as made:
            await made.follows(1)
            assert one.exists(KEYS.heartbeat("r0"))
            slot = one.execute_command("CLUSTER", "KEYSLOT", KEYS.stream)
            node = two.execute_command("CLUSTER", "MYID")
            one.flushall()
            for client in (two, one):
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", node)
            await eventually(lambda: bool(warnings("another node of the cluster has our keys")))
            await made.follows(2)
            assert made.routable
            assert two.exists(KEYS.heartbeat("r0"))


async def test_no_server_at_all_is_one_clear_error() -> None:
    for url in ("redis://:geheim@127.0.0.1:1", "redis+cluster://:geheim@127.0.0.1:1", "unix://:geheim@/nowhere"):
        said = await start_error(url)
        assert "geheim" not in said
        assert said.startswith(f"Redis at {without_secret(url)}: ")
