"""An exchange on aiohttp's server, where the application is served by that alone. Slower; the oracle in tests."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import aiohttp
from aiohttp import web

from gateway.http.errors import HttpError, malformed
from gateway.http.exchange import Exchange, Flow
from gateway.http.limits import WRITE_HIGH


async def exchanged(request: web.Request, serve: Callable[[Exchange], Awaitable[None]]) -> web.StreamResponse:
    """Runs `serve`, and writes what it says."""
    exchange = AiohttpExchange(request)
    task = asyncio.create_task(exchange.run(serve))
    try:
        return await exchange.pump()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class AiohttpExchange:
    """See `exchange.Exchange`. Writing is synchronous here and isn't there, so a pump is between."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.status = 0
        self.more_headers: Mapping[str, str] = {}
        self._response: web.StreamResponse | None = None
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting = 0
        """Bytes in the queue."""
        self._flow: Flow | None = None
        self._paused = False
        self._error: BaseException | None = None

        self.method, self.path, self.headers = request.method, request.path, request.headers
        self.remote = request.remote

    async def body(self) -> bytes:
        try:
            return await self._request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise HttpError(413, "body_too_large", "the body is too large") from error
        except (web.RequestPayloadError, aiohttp.http.HttpProcessingError) as error:
            raise malformed(f"the body can't be read: {error}") from error

    def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self._response = web.Response(status=status, headers={**headers, **self.more_headers}, body=body)
        self._queue.put_nowait(None)

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self._response = web.StreamResponse(status=status, headers={**headers, **self.more_headers})
        self._queue.put_nowait(b"")

    def write(self, data: bytes) -> None:
        self._queue.put_nowait(data)
        self._waiting += len(data)
        if self._waiting > WRITE_HIGH and not self._paused:
            self._paused = True
            if self._flow is not None:
                self._flow.pause_reading()

    def end(self) -> None:
        self._queue.put_nowait(None)

    def draw_from(self, flow: Flow | None) -> None:
        self._flow = flow
        if flow is not None and self._paused:
            flow.pause_reading()

    async def run(self, serve: Callable[[Exchange], Awaitable[None]]) -> None:
        try:
            await serve(self)
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._queue.put_nowait(None)

    async def pump(self) -> web.StreamResponse:
        while (data := await self._queue.get()) is not None:
            assert self._response is not None
            if not self._response.prepared:
                await self._response.prepare(self._request)
            if data:
                await self._response.write(data)
            self._waiting -= len(data)
            if self._paused and not self._waiting:
                self._paused = False
                if self._flow is not None:
                    self._flow.resume_reading()
        if self._error is not None:
            raise self._error
        if self._response is None:
            raise web.HTTPInternalServerError
        if self._response.prepared:
            await self._response.write_eof()
        return self._response
