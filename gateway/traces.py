"""What happened to the last requests: their decisions, for /route/explain, and their timelines, for /trace."""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gateway.hindsight import Judged, Sent
from gateway.recording.answer import AnswerCount
from gateway.router import Considered
from replica.protocol.spans import SpanContext

MAX_REQUESTS = 1000
MAX_ROWS = 64_000
"""Candidates over all kept decisions: on a fleet of 1,000 the last 64 requests are kept, not 1 million rows."""

KV_SAMPLES = 10_000

_ID_DIGITS = 32
_RANDOM_BYTES = 128 * _ID_DIGITS
_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(slots=True)
class Attempt:
    replica: str
    failure: str | None = None
    after_tokens: int = 0
    """That the client had been shown by then."""
    span: SpanContext | None = None


class Trace:
    """One request. Times in `events` are seconds since it was received."""

    # NOTE: no dataclass, which would set what few requests ever have for each of them.
    prompt_tokens: int = 0
    tokenised_at: float | None = None
    dispatched_at: float | None = None
    """For the first time."""
    first_byte_at: float | None = None
    """Of its last attempt."""
    considered: Considered | None = None
    sent: Sent | None = None
    judged: Judged | None = None
    held_s: float | None = None
    """In the gateway, before its last attempt; None: it wasn't."""
    replica_url: str = ""
    delivered_tokens: int | None = None
    replica_traced: bool = False
    model: str | None = None
    """As the gateway calls it, once it is known to be served here."""
    tenant: str | None = None
    """The name, never the key."""
    span: SpanContext | None = None
    rows: int = 0
    """Candidates of its decision, as `Traces` counts them."""
    prompts: tuple[str, ...] = ()
    """Ids of its prompts' own traces, where it has several."""

    def __init__(self, request_id: str, received_at: float) -> None:
        self.request_id = request_id
        self.received_at = received_at
        self.answer = AnswerCount()
        self.attempts: list[Attempt] = []
        self.marks: list[tuple[str, float, Mapping[str, Any]]] = []
        """What happened, when by the gateway's clock, and details."""

    def mark(self, event: str, now: float, details: Mapping[str, Any] = _NONE) -> None:
        self.marks.append((event, now, details))

    def tokenised(self, now: float, tokens: int) -> None:
        self.prompt_tokens, self.tokenised_at = tokens, now
        self.marks.append(("tokenised", now, {"tokens": tokens}))

    def dispatched(self, now: float, replica: str) -> None:
        if self.dispatched_at is None:
            self.dispatched_at = now
        self.marks.append(("dispatched", now, {"replica": replica}))

    def first_byte(self, now: float) -> None:
        self.first_byte_at = now
        self.marks.append(("first_byte", now, _NONE))

    @property
    def events(self) -> list[dict[str, Any]]:
        return [
            {"event": event, "at_s": round(at - self.received_at, 6), **details} for event, at, details in self.marks
        ]

    def last_at(self, event: str) -> float | None:
        return next((round(at - self.received_at, 6) for name, at, _ in reversed(self.marks) if name == event), None)

    def timeline(self, replica_trace: dict[str, Any] | None) -> dict[str, Any]:
        """Own events, and those of the replica shifted to when the request was dispatched to it."""
        events = self.events
        kv: list[Any] = []
        offset = self.last_at("dispatched")
        if replica_trace is not None and offset is not None:
            events += [item | {"at_s": item["at_s"] + offset, "source": "replica"} for item in replica_trace["events"]]
            kv = [[at_s + offset, entries] for at_s, entries in replica_trace["kv"][:KV_SAMPLES]]
        events.sort(key=lambda item: item["at_s"])
        return {"request_id": self.request_id, "events": events, "kv": kv}


def _fresh_ids(randbytes: Callable[[int], bytes]) -> Iterator[str]:
    """Random bytes come many at a time: a system call for each costs more than all that is done with them."""
    while True:
        random = randbytes(_RANDOM_BYTES).hex()
        for begin in range(0, len(random), _ID_DIGITS):
            yield random[begin : begin + _ID_DIGITS]


class Traces:
    """The last requests by id, bounded by number and by the size of their decisions."""

    def __init__(
        self,
        max_requests: int = MAX_REQUESTS,
        max_rows: int = MAX_ROWS,
        randbytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._max_requests = max_requests
        self._max_rows = max_rows
        self._traces: OrderedDict[str, Trace] = OrderedDict()
        self._total_rows = 0
        self.fresh_id: Callable[[], str] = _fresh_ids(randbytes).__next__
        """Nobody's yet, and not to be guessed."""

    def __len__(self) -> int:
        return len(self._traces)

    def begin(self, request_id: str, now: float) -> Trace:
        traces = self._traces
        if request_id in traces:
            self._total_rows -= traces.pop(request_id).rows
        trace = traces[request_id] = Trace(request_id, now)
        if len(traces) > self._max_requests:
            self._forget_oldest()
        return trace

    def decided(self, trace: Trace, considered: Considered) -> None:
        trace.considered = considered
        if self._traces.get(trace.request_id) is not trace:
            return
        rows = len(considered.decision.candidates)
        self._total_rows += rows - trace.rows
        trace.rows = rows
        while self._total_rows > self._max_rows and len(self._traces) > 1:
            self._forget_oldest()

    def get(self, request_id: str) -> Trace | None:
        return self._traces.get(request_id)

    def _forget_oldest(self) -> None:
        _, trace = self._traces.popitem(last=False)
        self._total_rows -= trace.rows
