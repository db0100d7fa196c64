"""A bound on the time to the first byte."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf

from gateway.errors import DeadlinePassed


@asynccontextmanager
async def first_byte_within(seconds: float) -> AsyncIterator[asyncio.Timeout]:
    """Cancels what is done in it after that time, unless `reschedule(None)` was called before.
    Where there is no deadline it needn't be entered.

    Raises DeadlinePassed.
    """
    timeout = asyncio.timeout(None if seconds == inf else max(0.0, seconds))
    try:
        async with timeout:
            yield timeout
    except TimeoutError as error:
        if not timeout.expired():
            raise
        raise DeadlinePassed("no first byte by the request's deadline") from error
