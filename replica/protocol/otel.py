"""Finished spans to an OpenTelemetry collector by OTLP over HTTP, from a thread, when an endpoint is set.

The SDK (the extra `otel`) is loaded only then. A collector that can't be reached costs nothing: what is queued is
dropped, no spans are made for a while, and one line says so, until it has been reached again.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from replica.protocol.spans import Span

_LOG = logging.getLogger(__name__)
_QUEUE = 8192
_BATCH = 512
_PERIOD_S = 1.0
_BACK_OFF_S = 15.0
_TIMEOUT_S = 3.0
_CLOSE_S = 3.0


class OtelMissing(ImportError):
    """OpenTelemetry's packages aren't installed."""


class Sender(Protocol):
    def send(self, spans: Sequence[Span]) -> bool:
        """Blocks; whether the collector took them."""
        ...

    def close(self) -> None: ...


class SpanSink:
    """Start it, put spans, close it. `put` never blocks. Without a sender it does nothing."""

    def __init__(self, sender: Sender | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._sender = sender
        self._clock = clock
        self._queue: deque[Span] = deque(maxlen=_QUEUE)
        self._quiet_until = 0.0
        self._reached = True
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)

    @property
    def is_on(self) -> bool:
        """Whether spans are worth making now."""
        return self._sender is not None and self._clock() >= self._quiet_until

    def start(self) -> None:
        if self._sender is not None:
            self._thread.start()

    def put(self, spans: Iterable[Span]) -> None:
        """What is over the queue's size pushes out the oldest."""
        self._queue.extend(spans)

    def close(self) -> None:
        """What is queued is sent first, if that is quick."""
        if self._sender is None:
            return
        self._stop.set()
        self._thread.join(_CLOSE_S)
        self._sender.close()

    def _run(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        assert self._sender is not None
        while self._queue and self._clock() >= self._quiet_until:
            batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
            if self._sender.send(batch):
                self._reached = True
                continue
            self._quiet_until = self._clock() + _BACK_OFF_S
            self._queue.clear()
            if self._reached:
                _LOG.warning("the OpenTelemetry collector can't be reached; spans are dropped until it can")
            self._reached = False


def is_endpoint(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def open_sink(endpoint: str | None, service: str, instance: str) -> SpanSink:
    """`endpoint`: the collector's base URL, as OTEL_EXPORTER_OTLP_ENDPOINT has it; None: no spans. Where the SDK is
    missing, a warning says so and there are no spans."""
    if endpoint is None:
        return SpanSink(None)
    try:
        return SpanSink(OtlpSender(endpoint, service, instance))
    except OtelMissing:
        _LOG.warning("spans need OpenTelemetry's packages: pip install 'ryokan[otel]'")
        return SpanSink(None)


class OtlpSender:
    def __init__(self, endpoint: str, service: str, instance: str) -> None:
        """Headers, certificates and compression are as OTEL_EXPORTER_OTLP_… say. Raises OtelMissing."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace.export import SpanExportResult
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError as error:
            raise OtelMissing(str(error)) from error
        # It logs every failed try, and each of its retries.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
        self._success = SpanExportResult.SUCCESS
        self._exporter: Any = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=_TIMEOUT_S)
        self._resource = Resource.create({"service.name": service, "service.instance.id": instance})
        self._scope = InstrumentationScope("ryokan")

    def send(self, spans: Sequence[Span]) -> bool:
        return bool(self._exporter.export([self._readable(span) for span in spans]) is self._success)

    def close(self) -> None:
        self._exporter.shutdown()

    def _readable(self, span: Span) -> Any:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import ReadableSpan

        def context(span_id: int) -> Any:
            flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
            return trace.SpanContext(span.context.trace_id, span_id, is_remote=False, trace_flags=flags)

        parent = span.context.parent_id
        status = trace.Status(trace.StatusCode.ERROR, span.error) if span.error else trace.Status()
        return ReadableSpan(
            name=span.name,
            context=context(span.context.span_id),
            parent=None if parent is None else context(parent),
            resource=self._resource,
            attributes=span.attributes,
            kind=trace.SpanKind[span.kind.upper()],
            status=status,
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )
