import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the gateway runs on: its timers aren't like asyncio's own."""
    return {"uvloop": uvloop.new_event_loop}
