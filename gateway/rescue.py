"""Requests on a replica that hangs: told to fail, so that another replica takes them on.

A crash closes its connections. A process that is stopped, or whose engine stands still, keeps them, and would keep its
requests for as long as silence is allowed, which must be long enough for a queue and a prefill. Its heartbeats tell.
"""

import asyncio

from gateway.fleet import Fleet
from gateway.http.client import Pool

LOOK_S = 0.5
SILENT_S = 3.0
"""Without a byte, besides: a replica that has only lost Redis answers on."""


async def rescue(fleet: Fleet, pool: Pool) -> None:
    """For as long as it runs."""
    while True:
        await asyncio.sleep(LOOK_S)
        for url in fleet.hanging():
            pool.cut_silent(url, SILENT_S)
