"""The HTTP side of replicas: one client session, errors by what they say about the replica, and the retry budget."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import aiohttp
import orjson

from gateway.admission import Waiters
from gateway.config import Timeouts
from gateway.errors import (
    ReplicaBusy,
    ReplicaDied,
    ReplicaFailed,
    ReplicaTimeout,
    ReplicaUnreachable,
    RetryBudgetExhausted,
    UpstreamError,
)

MAX_CONNECTIONS = 10_000
KEEP_ALIVE_S = 15.0
"""Shorter than any replica's, so that a replica never closes an idle connection just as a request goes out on it."""

TRACE_TIMEOUT_S = 2.0
BUSY = (429, 503)


class Upstream:
    """Use it as an async context manager."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._session: aiohttp.ClientSession | None = None
        self._open: set[aiohttp.ClientResponse] = set()

    async def __aenter__(self) -> "Upstream":
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._timeouts.connect_s, sock_read=self._timeouts.first_byte_s
            ),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cuts what is still in flight."""
        for response in self._open:
            # NOTE: closing the session alone leaves whoever reads a response waiting for ever.
            response.content.set_exception(aiohttp.ClientConnectionError("the gateway is shutting down"))
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        """The replica's answer from its headers on, which come with the first token.

        Leaving the context before the answer's end closes the connection, which makes the replica abort.
        Raises an UpstreamError for a replica that didn't answer, or answered that it can't.
        """
        response = await self._send(url, body, headers)
        self._open.add(response)
        try:
            self._fall_silent_after(response, self._timeouts.idle_s)
            if response.status in BUSY:
                raise ReplicaBusy(f"the replica answered {response.status}")
            if response.status >= 500:
                raise ReplicaFailed(f"the replica answered {response.status}")
            if 300 <= response.status < 400:
                raise ReplicaFailed("the replica answered with a redirect")
            yield response
        finally:
            self._open.discard(response)
            # NOTE: release() would wait for the rest of the body; after its end both keep the connection.
            response.close() if not response.content.at_eof() else response.release()

    async def trace(self, replica_url: str, request_id: str) -> dict[str, Any] | None:
        """The replica's own timeline of a request; None where it has none."""
        assert self._session is not None
        try:
            async with asyncio.timeout(TRACE_TIMEOUT_S):
                async with self._session.get(f"{replica_url}/trace/{request_id}", allow_redirects=False) as response:
                    value = orjson.loads(await response.read()) if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None
        if not isinstance(value, dict) or not {"events", "kv"} <= value.keys():
            return None
        return value

    async def _send(self, url: str, body: bytes, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        assert self._session is not None
        try:
            return await self._session.post(url, data=body, headers=headers, allow_redirects=False)
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            raise ReplicaUnreachable("no connection to the replica") from error
        except (aiohttp.ClientError, OSError) as error:
            raise translated(error) from error

    @staticmethod
    def _fall_silent_after(response: aiohttp.ClientResponse, seconds: float) -> None:
        """From the first byte on, another limit of silence holds than before it."""
        connection = response.connection
        if connection is not None and connection.protocol is not None:
            connection.protocol.read_timeout = seconds
            connection.protocol.start_timeout()


def translated(error: aiohttp.ClientError | OSError) -> UpstreamError:
    """What a failure on an open connection says about the replica."""
    if isinstance(error, TimeoutError):
        return ReplicaTimeout("the replica has been silent for too long")
    return ReplicaDied("the replica closed the connection before its answer was whole")


class RetryBudget:
    """Retries at any moment as a share of live requests. One over it waits, so a replica's death neither fails the
    requests that it held nor sends them to the others all at once."""

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self._share = share
        self._retrying = 0
        self._waiters = Waiters(clock)
        self.live = 0

    @property
    def limit(self) -> int:
        return max(1, int(self._share * self.live))

    @contextmanager
    def request(self) -> Iterator[None]:
        """Counts one live request."""
        self.live += 1
        try:
            yield
        finally:
            self.live -= 1
            self._waiters.notify()

    async def take(self, deadline: float) -> ExitStack:
        """A slot for one retry, to be closed when its first byte is there. Raises RetryBudgetExhausted."""
        if await self._waiters.until(self._try_take, deadline) is None:
            raise RetryBudgetExhausted("a replica failed, and too many requests are being retried already")
        slot = ExitStack()
        slot.callback(self._give_back)
        return slot

    async def idle(self, deadline: float) -> None:
        """Until no request is live, or the deadline."""
        await self._waiters.until(lambda: True if self.live == 0 else None, deadline)

    def _try_take(self) -> bool | None:
        if self._retrying >= self.limit:
            return None
        self._retrying += 1
        return True

    def _give_back(self) -> None:
        self._retrying -= 1
        self._waiters.notify()
