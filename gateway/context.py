"""What belongs to one request of the hot path, from its head to the end of its answer."""

from dataclasses import dataclass

from aiohttp import web

from gateway.http.exchange import Exchange
from gateway.keys import POOLS
from gateway.pools import Pool
from gateway.relay import ClientStream
from gateway.tenants.caller import ANONYMOUS, Caller
from gateway.traces import Trace


@dataclass(slots=True)
class Context:
    app: web.Application
    exchange: Exchange
    trace: Trace
    caller: Caller = ANONYMOUS
    _pool: Pool | None = None
    stream: ClientStream | None = None
    """Where the client has asked for one."""

    @property
    def pool(self) -> Pool:
        """Of the model that is asked for, once that is known; before, the first."""
        return self.app[POOLS].first if self._pool is None else self._pool

    @pool.setter
    def pool(self, pool: Pool) -> None:
        self._pool = pool
