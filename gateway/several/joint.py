"""The one reply of a request with several prompts, and what each prompt's own path takes for its client."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.http.exchange import Exchange, Flow
from gateway.relay import KEEP_ALIVE, STREAM_HEADERS
from gateway.several.merge import StreamMerger


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Joint:
    """A stream to the client, made of all prompts' events as they come."""

    def __init__(
        self,
        exchange: Exchange,
        merger: StreamMerger,
        headers: Callable[[], Mapping[str, str]],
        now: Callable[[], float],
        keep_alive_s: float,
    ) -> None:
        """`headers`: what goes beside STREAM_HEADERS, when the first bytes do."""
        self._exchange = exchange
        self._merger = merger
        self._headers = headers
        self._now = now
        self._keep_alive_s = keep_alive_s
        self._written_at = now()
        self._flows: dict[int, Flow] = {}
        self.opened = False
        """Nothing goes to the client before, not even a sign of life: the request may still be refused."""

    @property
    def begun(self) -> bool:
        return self._exchange.status != 0

    @property
    def broken(self) -> bool:
        return self._merger.broken

    def take(self, prompt: int, data: bytes) -> None:
        """Events of one prompt's stream, or a comment that shows its client a sign of life."""
        if data == KEEP_ALIVE:
            # Each has its own timer, and may be silent while others speak.
            if self.opened and self._now() - self._written_at >= self._keep_alive_s / 2:
                self._write(KEEP_ALIVE)
            return
        self._write(self._merger.feed(prompt, data))

    def end(self) -> None:
        """All have ended."""
        self._write(self._merger.end())
        self._exchange.end()

    def break_off(self, error: bytes) -> None:
        """One has failed."""
        self._write(self._merger.break_off(error))
        self._exchange.end()

    def _write(self, data: bytes) -> None:
        if not data:
            return
        if not self.begun:
            self._exchange.start(200, {**self._headers(), **STREAM_HEADERS})
        self._written_at = self._now()
        self._exchange.write(data)

    def draw_from(self, prompt: int, flow: Flow | None) -> None:
        if flow is None:
            self._flows.pop(prompt, None)
        else:
            self._flows[prompt] = flow
        self._exchange.draw_from(self if self._flows else None)

    # As the flow of the client's reply.

    def pause_reading(self) -> None:
        for flow in self._flows.values():
            flow.pause_reading()

    def resume_reading(self) -> None:
        for flow in self._flows.values():
            flow.resume_reading()


class PartExchange:
    """See `http.exchange.Exchange`: as if one prompt were all that the client had sent."""

    def __init__(self, prompt: int, whole: Exchange, joint: Joint | None) -> None:
        """`joint`: None where the client wants no stream."""
        self.status = 0
        self.more_headers: Mapping[str, str] = {}
        self.reply: Reply | None = None
        """What came in one piece: an answer that isn't a stream, or an error before there was one."""
        self._prompt = prompt
        self._joint = joint
        self.method, self.path, self.headers, self.remote = whole.method, whole.path, whole.headers, whole.remote

    async def body(self) -> bytes:
        """It has been read."""
        return b""

    def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status, self.reply = status, Reply(status, headers, body)

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status

    def write(self, data: bytes) -> None:
        if self._joint is not None:
            self._joint.take(self._prompt, data)

    def end(self) -> None:
        """The others may not have ended."""

    def draw_from(self, flow: Flow | None) -> None:
        if self._joint is not None:
            self._joint.draw_from(self._prompt, flow)
