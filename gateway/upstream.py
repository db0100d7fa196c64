"""The HTTP side of replicas: the pool of connections, what statuses say about a replica, and the retry budget."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import orjson

from gateway.admission import Waiters
from gateway.config import Timeouts
from gateway.errors import NoReplica, ReplicaBusy, ReplicaFailed, RetryBudgetExhausted, UpstreamError, UpstreamRefused
from gateway.http.client import Answer, Pool
from gateway.http.wheel import Wheel
from gateway.upstream_keys import UpstreamKeys

TRACE_TIMEOUT_S = 2.0
BUSY = (429, 503)
REFUSED = (401, 403)


class Upstream:
    """Make it in a running loop, and use it as an async context manager."""

    def __init__(self, timeouts: Timeouts, keys: UpstreamKeys) -> None:
        self.timeouts = timeouts
        self.keys = keys
        self.wheel = Wheel(asyncio.get_running_loop())
        self.pool = Pool(self.wheel, timeouts.connect_s)
        self._closed = False

    def use(self, timeouts: Timeouts, keys: UpstreamKeys) -> None:
        """Of requests that begin from now on."""
        self.keys = keys
        self.timeouts, self.pool.connect_s = timeouts, timeouts.connect_s

    async def __aenter__(self) -> "Upstream":
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Cuts what is still in flight, and no other replica goes on with it."""
        self._closed = True
        self.pool.close()

    async def post(self, url: str, body: bytes, fields: str) -> Answer:
        """The replica's answer from its headers on, which come with the first token; close it. `fields`: header lines.

        Raises an UpstreamError for a replica that didn't answer, or answered that it can't; NoReplica once closed.
        """
        if self._closed:
            raise NoReplica("this gateway is shutting down")
        answer = await self.pool.request(
            "POST",
            url,
            f"accept-encoding: identity\r\n{fields}".encode(),
            body,
            first_byte_s=self.timeouts.first_byte_s,
            idle_s=self.timeouts.idle_s,
        )
        if answer.status >= 300:
            failed = _failure(answer.status)
            if failed is not None:
                answer.close()
                raise failed
        return answer

    async def trace(self, replica_url: str, request_id: str) -> dict[str, Any] | None:
        """The replica's own timeline of a request; None where it has none."""
        url = f"{replica_url}/trace/{request_id}"
        try:
            answer = await self.pool.request("GET", url, b"", b"", first_byte_s=TRACE_TIMEOUT_S, idle_s=TRACE_TIMEOUT_S)
            try:
                value = orjson.loads(await answer.read()) if answer.status == 200 else None
            finally:
                answer.close()
        except (UpstreamError, ValueError):
            return None
        if not isinstance(value, dict) or not {"events", "kv"} <= value.keys():
            return None
        return value


def _failure(status: int) -> UpstreamError | None:
    if status in BUSY:
        return ReplicaBusy(f"the replica answered {status}")
    if status >= 500:
        return ReplicaFailed(f"the replica answered {status}")
    if status in REFUSED:
        return UpstreamRefused(f"the upstream answered {status}: it refuses this gateway, not its client")
    if 300 <= status < 400:
        return ReplicaFailed("the replica answered with a redirect")
    return None


class RetryBudget:
    """Retries at any moment as a share of live requests. One over it waits, so a replica's death neither fails the
    requests that it held nor sends them to the others all at once."""

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self.share = share
        self._retrying = 0
        self._waiters = Waiters(clock)
        self.live = 0

    @property
    def limit(self) -> int:
        return max(1, int(self.share * self.live))

    def begin(self) -> None:
        """A live request; `end` it."""
        self.live += 1

    def end(self) -> None:
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
