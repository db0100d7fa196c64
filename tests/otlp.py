"""An OpenTelemetry collector for tests: a real server that decodes what exporters send it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.gateway.fakes import serving


@dataclass
class Received:
    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    kind: int
    attributes: dict[str, Any]
    error: str


@dataclass
class Collector:
    url: str = ""
    spans: list[Received] = field(default_factory=list)
    calls: int = 0
    status: int = 200

    def named(self, name: str) -> list[Received]:
        return [span for span in self.spans if span.name == name]

    async def take(self, request: web.Request) -> web.Response:
        self.calls += 1
        if self.status != 200:
            return web.Response(status=self.status)
        # Here, so that tests that skip without it can be collected.
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        assert request.content_type == "application/x-protobuf"
        message: Any = ExportTraceServiceRequest.FromString(await request.read())
        for resource in message.resource_spans:
            about = {item.key: item.value.string_value for item in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [_received(about["service.name"], span) for span in scope.spans]
        return web.Response(body=b"", content_type="application/x-protobuf")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Collector"]:
        app = web.Application()
        app.router.add_post("/v1/traces", self.take)
        async with serving(app) as self.url:
            yield self


def _received(service: str, span: Any) -> Received:
    attributes = {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}
    return Received(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.kind,
        attributes,
        span.status.message,
    )
