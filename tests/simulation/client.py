"""The few methods of the Redis client library that our wires call, over a simulated network that may lose anything."""

import asyncio
from random import Random
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from tests.simulation.server import Server, parse_id


class Network:
    """Where Redis is to be found, and how well."""

    def __init__(self, server: Server, rng: Random) -> None:
        self.server = server
        self.rng = rng
        self.down = False
        self.slow_s = 0.0
        """Of each round trip, at any point of which the command is executed."""
        self.loss = 0.0
        """Chance, for each round trip, that the connection is lost in it."""
        self.clients: dict[Client, None] = {}

    def replace(self, server: Server) -> None:
        """Another server takes over the address."""
        self.server = server
        self.kill_all()

    def kill_all(self) -> None:
        for client in list(self.clients):
            client.kill()

    def delay(self) -> float:
        """Before a command is executed."""
        rng = self.rng
        return self.slow_s * rng.random() + (rng.uniform(0.0002, 0.002) if rng.random() < 0.95 else rng.random() / 20)


class Client:
    """One connection."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._server = network.server
        self._blocked: asyncio.Future[None] | None = None
        self._lost = False

    async def initialize(self) -> None:
        self._server = self._network.server
        self._network.clients[self] = None

    async def ping(self) -> None:
        await self._round_trip([])

    async def aclose(self) -> None:
        self._network.clients.pop(self, None)
        self._lost = True

    def kill(self) -> None:
        self._lost = True
        if self._blocked is not None and not self._blocked.done():
            self._blocked.set_exception(RedisConnectionError("connection lost"))

    async def _round_trip(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        """Executes them one after another; others may come in between. The connection may be lost before, within or
        after."""
        network, rng = self._network, self._network.rng
        self._check()
        arrival = asyncio.get_running_loop().time() + network.slow_s
        await asyncio.sleep(network.delay())
        cut = rng.randrange(len(commands) + 1) if network.loss and rng.random() < network.loss else -1
        pause_at = rng.randrange(len(commands)) if len(commands) > 1 and rng.random() < 0.1 else -1
        replies: list[Any] = []
        for number, command in enumerate(commands):
            if number == pause_at:
                await asyncio.sleep(0.001)
            if number == cut:
                self.kill()
            self._check()
            try:
                replies.append(self._server.execute(*command))
            except ResponseError as error:
                replies.append(error)
        if cut == len(commands):
            self.kill()
        if network.slow_s:
            await asyncio.sleep(arrival - asyncio.get_running_loop().time())
        self._check()
        return replies

    def _check(self) -> None:
        if self._lost or self._network.down:
            raise RedisConnectionError("connection lost")

    async def _one(self, *command: Any) -> Any:
        reply = (await self._round_trip([command]))[0]
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    def pipeline(self, transaction: bool) -> "Pipeline":
        assert not transaction
        return Pipeline(self._round_trip)

    async def xread(self, streams: dict[str, str], count: int, block: int) -> list[Any]:
        await self._round_trip([])
        found = self._after(streams, count)
        if not found:
            await self._wait(block / 1000)
            found = self._after(streams, count)
        return found

    def _after(self, streams: dict[str, str], count: int) -> list[Any]:
        found = [(key.encode(), self._server.after(key, parse_id(after), count)) for key, after in streams.items()]
        return [(key, entries) for key, entries in found if entries]

    async def _wait(self, limit_s: float) -> None:
        """For any news in a stream. A wake-up for nothing is harmless: the caller reads on."""
        loop = asyncio.get_running_loop()
        self._blocked = loop.create_future()
        self._server.blocked.append(self._blocked)
        timer = loop.call_later(limit_s, _set, self._blocked)
        try:
            await self._blocked
        finally:
            timer.cancel()
        self._check()

    async def set(self, key: str, value: bytes, ex: float) -> Any:
        return await self._one("set", key, value, ex)

    async def xadd(self, key: str, fields: dict[Any, Any], maxlen: int, approximate: bool) -> Any:
        assert approximate
        return await self._one("xadd", key, fields, maxlen)

    async def getrange(self, key: str, start: int, end: int) -> Any:
        return await self._one("getrange", key, start, end)

    async def pexpire(self, key: str, milliseconds: int) -> Any:
        return await self._one("pexpire", key, milliseconds)

    async def xrange(self, key: str, min: str, count: int) -> Any:
        await self._round_trip([])
        return self._server.after(key, parse_id(min.removeprefix("(")), count)

    async def xinfo_stream(self, key: str) -> Any:
        return await self._one("xinfo_stream", key)

    async def srandmember(self, key: str, most: int) -> Any:
        return await self._one("srandmember", key, most)

    async def srem(self, key: str, *members: bytes) -> Any:
        return await self._one("srem", key, *members)


def _set(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


class Pipeline:
    """Collects commands; not atomic."""

    def __init__(self, round_trip: Any) -> None:
        self._round_trip = round_trip
        self._commands: list[tuple[Any, ...]] = []

    def set(self, key: str, value: bytes, px: int | None = None) -> None:
        self._commands.append(("set", key, value, None if px is None else px / 1000))

    def delete(self, *keys: str) -> None:
        self._commands.append(("delete", *keys))

    def xadd(self, key: str, fields: dict[Any, Any], maxlen: int, approximate: bool) -> None:
        self._commands.append(("xadd", key, fields, maxlen))

    def xinfo_stream(self, key: str) -> None:
        self._commands.append(("xinfo_stream", key))

    def sadd(self, key: str, member: str) -> None:
        self._commands.append(("sadd", key, member))

    def srem(self, key: str, member: str) -> None:
        self._commands.append(("srem", key, member))

    def exists(self, key: str | bytes) -> None:
        self._commands.append(("exists", key if isinstance(key, str) else key.decode()))

    def pttl(self, key: str) -> None:
        self._commands.append(("pttl", key))

    def getrange(self, key: str, start: int, end: int) -> None:
        self._commands.append(("getrange", key, start, end))

    def strlen(self, key: str) -> None:
        self._commands.append(("strlen", key))

    def pexpire(self, key: str, milliseconds: int) -> None:
        self._commands.append(("pexpire", key, milliseconds))

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        replies: list[Any] = await self._round_trip(self._commands)
        for reply in replies:
            if raise_on_error and isinstance(reply, ResponseError):
                raise reply
        return replies
