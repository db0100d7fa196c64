"""What belongs to one request of the hot path, from its head to the end of its answer."""

from dataclasses import dataclass

from aiohttp import web

from gateway.http.exchange import Exchange
from gateway.relay import ClientStream
from gateway.tenants.caller import ANONYMOUS, Caller
from gateway.traces import Trace


@dataclass(slots=True)
class Context:
    app: web.Application
    exchange: Exchange
    trace: Trace
    caller: Caller = ANONYMOUS
    stream: ClientStream | None = None
    """Where the client has asked for one."""
