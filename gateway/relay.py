"""A client's stream: a replica's events as they come, and signs of life while none do."""

import asyncio
from collections.abc import Callable, Mapping

import orjson

from gateway.errors import UpstreamError
from gateway.events import EventRelay
from gateway.http.client import Answer
from gateway.http.exchange import Exchange
from gateway.http.wheel import Timed, Wheel
from gateway.recording.answer import AnswerCount
from replica.protocol.strict import error_body

KEEP_ALIVE_S = 15.0
"""Of silence, before a comment says that somebody is still there: idle timers of proxies begin at 30 s."""
KEEP_ALIVE = b": keep-alive\n\n"
STREAM_HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}


class ClientStream(Timed):
    """Outlives attempts: what one replica began another may go on with, by `follow` for each.

    A client that has waited for KEEP_ALIVE_S before the first token gets its 200 and a comment. So an early failure is
    a real 4xx or 5xx, as clients expect, and a late one an error event: whoever has waited so long behind a proxy
    would else have lost the connection to it.
    """

    def __init__(
        self,
        exchange: Exchange,
        wheel: Wheel,
        loop: asyncio.AbstractEventLoop,
        headers: Callable[[], Mapping[str, str]],
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        """`headers`: what goes beside STREAM_HEADERS where the stream begins before there is an answer."""
        super().__init__()
        self.events = EventRelay()
        self._exchange = exchange
        self._wheel = wheel
        self._loop = loop
        self._now = loop.time
        self._write = exchange.write
        self._headers = headers
        self._keep_alive_s = keep_alive_s
        self._answer: Answer | None = None
        self._count: AnswerCount
        self._followed: asyncio.Future[None] | None = None
        wheel.watch(self, loop.time() + keep_alive_s)

    @property
    def begun(self) -> bool:
        """The client has its 200: from here on errors are events."""
        return self._exchange.status != 0

    async def follow(self, answer: Answer, headers: Mapping[str, str], count: AnswerCount) -> int | None:
        """Until the answer's end. `headers` go out if the stream begins with it. Returns the delivered tokens where
        the replica tells them at the end.

        Raises an UpstreamError where the answer breaks off; the client's stream is then still open. Cancelled when
        the client leaves.
        """
        if not self.begun:
            self._exchange.start(200, {**headers, **STREAM_HEADERS})
        self.events.go_on()
        self._answer, self._count = answer, count
        followed = self._followed = self._loop.create_future()
        self._exchange.draw_from(answer)
        answer.pour_into(self)
        await followed
        return self.events.delivered

    def end(self, event: bytes | None = None) -> None:
        """With an error's event where the stream couldn't be made whole."""
        if event is not None and not self.events.done:
            self._exchange.write(self.events.break_off(event))
        self._exchange.end()

    def finish(self) -> None:
        """A replica broke off when nothing but `[DONE]` was missing."""
        self.events.go_on()
        self._exchange.write(self.events.end())
        self._exchange.end()

    def close(self) -> None:
        self._wheel.forget(self)
        self._exchange.draw_from(None)

    # As the answer's sink.

    def data(self, payload: bytes) -> None:
        events = self.events
        out = events.feed(payload)
        if out:
            self._write(out)
            self._count.feed(out)
            self.deadline = self._now() + self._keep_alive_s
        if events.done:
            self._finish()

    def ended(self) -> None:
        out = self.events.end()
        if out:
            self._exchange.write(out)
        self._finish()

    def failed(self, error: UpstreamError) -> None:
        if self._followed is not None and not self._followed.done():
            self._followed.set_exception(error)

    def _finish(self) -> None:
        if self._followed is None or self._followed.done():
            return
        self._followed.set_result(None)
        if self._answer is not None:
            self._answer.settle()

    # As what the wheel watches.

    def expired(self) -> None:
        if self.events.done:
            return
        if not self.begun:
            self._exchange.start(200, {**self._headers(), **STREAM_HEADERS})
        if self.events.between_events:
            self._exchange.write(KEEP_ALIVE)
        self._wheel.watch(self, self._loop.time() + self._keep_alive_s)


def as_event(body: bytes) -> bytes:
    """A replica's refusal, for a client that has got its 200 already."""
    try:
        return orjson.dumps(orjson.loads(body))
    except orjson.JSONDecodeError:
        return error_body("the replica refused the request", type="upstream_error", code="replica_refused")
