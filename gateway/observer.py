"""What is left of a request once it has ended: counts, a line in the access log, spans."""

import random
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from gateway.access_log import AccessLog, Answered, Course, course, line
from gateway.metrics import Metrics
from gateway.spans import request_spans, span_of
from gateway.traces import Trace
from replica.protocol.otel import SpanSink
from replica.protocol.spans import TRACEPARENT, TRACESTATE, SpanContext, begin, parse_traceparent


class Observer:
    def __init__(self, metrics: Metrics, access_log: AccessLog, spans: SpanSink) -> None:
        self.access_log = access_log
        self.spans = spans
        self._metrics = metrics
        # NOTE: ids that only tell spans apart; the secure source costs a system call each.
        self._randbits = random.Random().getrandbits

    def start(self) -> None:
        self.access_log.start()
        self.spans.start()

    def close(self) -> None:
        """Blocks for as long as what is queued takes, a few seconds at most."""
        self.access_log.close()
        self.spans.close()

    def span(self, headers: Mapping[str, str]) -> SpanContext | None:
        """Of a request with these headers."""
        given = headers.get(TRACEPARENT)
        if given is None and not self.spans.is_on:
            return None
        parent = None if given is None else parse_traceparent(given, headers.get(TRACESTATE, ""))
        return span_of(parent, self.spans.is_on, lambda: begin(self._randbits), self._randbits)

    def below(self, span: SpanContext | None) -> SpanContext | None:
        """For one prompt of several; see `span`."""
        return span.child(self._randbits) if span is not None and self.spans.is_on else span

    def attempt(self, trace: Trace, whole: SpanContext) -> dict[str, str]:
        """Gives the last attempt a span of its own, below the `whole` request's; the headers that make the replica's
        spans its children."""
        if not self.spans.is_on:
            return whole.headers
        span = trace.attempts[-1].span = whole.child(self._randbits)
        return span.headers

    def answered(self, answered: Answered, trace: Trace | None, policy: str) -> None:
        """The client has got all that it gets, or has left."""
        self._metrics.answered(answered.endpoint, policy, answered.status, answered.code)
        if trace is not None:
            self.ended(answered, trace)
        elif self.access_log.is_on:
            self.access_log.put(line(answered, None, Course(), datetime.now(UTC)))

    def ended(self, answered: Answered, trace: Trace) -> None:
        """All but that an answer has been sent: of one prompt of several, which have one between them."""
        went, considered = course(trace, answered.took_s), trace.considered
        if considered is not None and answered.status == 200:
            of = self._metrics.of[considered.decision.policy]
            of.ended(answered.took_s, went.held_s, went.itl_s, went.output_tokens)
        if self.access_log.is_on:
            self.access_log.put(line(answered, trace, went, datetime.now(UTC)))
        if trace.span is not None and self.spans.is_on:
            self.spans.put(request_spans(trace, answered, went, time.time_ns(), self._randbits))
