"""A lean server on its own, and clients that speak to it byte by byte."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from aiohttp import web

from gateway.http.exchange import Exchange
from gateway.http.limits import HttpLimits
from gateway.http.server import LeanServer
from gateway.http.wheel import Wheel
from replica.protocol.listening import bind, listen

LIMITS = HttpLimits(body=100_000, head_s=0.4, body_s=0.4, idle_s=0.5, stall_s=0.5, linger_s=0.3)
PATH = "/v1/chat/completions"


async def echoes(exchange: Exchange) -> None:
    exchange.send(200, {"content-type": "text/plain"}, b"<" + await exchange.body() + b">")


@dataclass
class Rig:
    port: int
    server: LeanServer
    served: list[Exchange] = field(default_factory=list)
    cancelled: int = 0
    clients: list["Client"] = field(default_factory=list)

    async def connect(self) -> "Client":
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client

    async def ask(self, *pieces: bytes) -> bytes:
        """All that comes back until the server closes the connection."""
        client = await self.connect()
        for piece in pieces:
            await client.send(piece)
        return await client.rest()


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self) -> tuple[int, dict[str, str], bytes]:
        """One, of known length or chunked."""
        async with asyncio.timeout(5):
            raw = await self.reader.readuntil(b"\r\n\r\n")
            status, *fields = raw.decode().split("\r\n")[:-2]
            headers = dict(field.split(": ", 1) for field in fields)
            if "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                body = b"".join([chunk async for chunk in self.chunks()])
            return int(status.split()[1]), headers, body

    async def chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self.reader.readline(), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()

    async def rest(self) -> bytes:
        async with asyncio.timeout(5):
            data = await self.reader.read()
        self.writer.close()
        return data

    def reset(self) -> None:
        """Leaves with an RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.writer.transport.abort()


@asynccontextmanager
async def rig(handle: Callable[[Exchange], Awaitable[None]] = echoes, **limits: float) -> AsyncIterator[Rig]:
    app = web.Application()

    async def cold(request: web.Request) -> web.Response:
        return web.Response(body=f"{request.method} {request.path_qs} ".encode() + await request.read())

    app.router.add_route("*", "/{path:.*}", cold)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    assert runner.server is not None
    made = Rig(0, None)  # type: ignore[arg-type]

    async def serve(exchange: Exchange) -> None:
        made.served.append(exchange)
        try:
            await handle(exchange)
        except asyncio.CancelledError:
            made.cancelled += 1
            raise

    made.server = LeanServer(
        replace(LIMITS, **limits),  # type: ignore[arg-type]
        Wheel(asyncio.get_running_loop()),
        hot=frozenset([("POST", PATH)]),
        handle=serve,
        guest=runner.server,
    )
    listener = bind("127.0.0.1", 0)
    listen(listener)
    made.port = listener.getsockname()[1]
    await made.server.listen(listener)
    try:
        yield made
    finally:
        for client in made.clients:
            client.writer.transport.abort()
        made.server.drain()
        await runner.cleanup()
        await made.server.close()


def post(body: bytes = b"", *fields: str, path: str = PATH, version: str = "1.1", length: bool = True) -> bytes:
    lines = [f"POST {path} HTTP/{version}", "host: x", *fields]
    if length:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
