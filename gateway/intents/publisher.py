"""Outbox to Redis: one task, one connection of its own. No request waits for it: what Redis doesn't take in time is
dropped."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from redis.exceptions import RedisError

from gateway.intents.outbox import Outbox
from replica.protocol.records import StreamFields
from replica.protocol.redis_link import Complaints, being_cancelled, explain

log = logging.getLogger(__name__)

BACK_OFF_MAX_S = 2.0

LOST = (RedisError, OSError, TimeoutError)


class IntentWire(Protocol):
    """What the publisher asks of Redis: `gateway.wire.Wire` in life. Raises RedisError, OSError or TimeoutError."""

    async def add(self, entry: StreamFields) -> None: ...


class IntentEvents(Protocol):
    """What the publisher tells the metrics."""

    def intents_sent(self, intents: int) -> None: ...

    def intents_dropped(self, reason: str, intents: int) -> None:
        """Others were not told of them."""


class IntentPublisher:
    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[IntentWire]],
        outbox: Outbox,
        events: IntentEvents,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`jitter` gives a number from 0 to 1."""
        self._connect = connect
        self._outbox = outbox
        self._events = events
        self._clock = clock
        self._jitter = jitter
        self._wake = asyncio.Event()
        self._losses = Complaints()
        outbox.wake = self._wake.set

    async def run(self) -> None:
        """Until cancelled: connects again whenever the connection is lost."""
        back_off = 0.0
        while not being_cancelled():
            try:
                async with self._connect() as wire:
                    while not being_cancelled():
                        await self._step(wire)
                        back_off = 0.0
            except LOST as error:
                reason = explain(error)
                if self._losses.is_new(reason, self._clock()):
                    log.warning("can't tell other gateways where requests go: %s", reason)
            back_off = min(BACK_OFF_MAX_S, back_off * 2 or 0.05)
            await asyncio.sleep(back_off * (0.5 + self._jitter() / 2))

    async def _step(self, wire: IntentWire) -> None:
        self._wake.clear()
        entry = self._outbox.take(self._clock())
        if entry is None:
            now = self._clock()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._outbox.next_due(now) - now)):
                    await self._wake.wait()
            return
        try:
            await wire.add(entry.encode())
        except LOST:
            self._events.intents_dropped("lost", len(entry.routed))
            raise
        self._events.intents_sent(len(entry.routed))
