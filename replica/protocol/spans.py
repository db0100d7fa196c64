"""Spans of a request, and the W3C trace context that ties those of client, gateway and replica together. Pure."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
TRACESTATE_MAX = 512

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1

Value = str | int | float | bool
Randbits = Callable[[int], int]
"""A random number of so many bits."""


@dataclass(frozen=True, slots=True)
class SpanContext:
    """Where a span stands: its trace, itself, and its parent, which may be another process's."""

    trace_id: int
    span_id: int
    parent_id: int | None
    sampled: bool = True
    state: str = ""
    """The client's `tracestate`, passed on as it came."""

    def child(self, randbits: Randbits) -> "SpanContext":
        return SpanContext(self.trace_id, _nonzero(randbits, 64), self.span_id, self.sampled, self.state)

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"

    @property
    def headers(self) -> dict[str, str]:
        state = {TRACESTATE: self.state} if self.state else {}
        return {TRACEPARENT: self.traceparent, **state}


@dataclass(frozen=True, slots=True)
class Span:
    context: SpanContext
    name: str
    start_ns: int
    end_ns: int
    """Both since the epoch."""
    attributes: dict[str, Value] = field(default_factory=dict)
    kind: Literal["server", "client", "internal"] = "internal"
    error: str | None = None
    """What went wrong, in one word."""


def begin(randbits: Randbits) -> SpanContext:
    """The root of a new trace."""
    return SpanContext(_nonzero(randbits, 128), _nonzero(randbits, 64), None)


def parse_traceparent(value: str, state: str = "") -> SpanContext | None:
    """The caller's span; None where the header isn't one, as https://www.w3.org/TR/trace-context/ has it."""
    found = _TRACEPARENT.fullmatch(value.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    sampled = bool(int(flags, 16) & _SAMPLED)
    state = state if len(state) <= TRACESTATE_MAX and state.isascii() and state.isprintable() else ""
    return SpanContext(int(trace_id, 16), int(span_id, 16), None, sampled, state)


def _nonzero(randbits: Randbits, bits: int) -> int:
    while not (number := randbits(bits)):
        pass
    return number
