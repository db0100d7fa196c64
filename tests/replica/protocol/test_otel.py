"""Spans to a collector that is there, isn't, and comes back."""

import asyncio
import logging
import random
import subprocess
import sys

import pytest

from replica.protocol import otel
from replica.protocol.otel import OtlpSender, SpanSink, open_sink
from replica.protocol.spans import Span, begin
from tests.gateway.fakes import eventually
from tests.otlp import Collector
from tests.processes import ROOT, spare_port

BITS = random.Random(1).getrandbits


def span(name: str = "x") -> Span:
    context = begin(BITS)
    return Span(context.child(BITS), name, 10**18, 10**18 + 5, {"a": 1, "b": "c", "d": 0.5}, "client", "closed")


async def test_spans_arrive_whole() -> None:
    pytest.importorskip("opentelemetry.sdk")
    async with Collector().serving() as collector:
        sink = open_sink(collector.url + "/", "ryokan-gateway", "g1")
        sink.start()
        assert sink.is_on
        sent = [span(f"s{number}") for number in range(600)]
        sink.put(sent)
        await eventually(lambda: len(collector.spans) == 600)
        await asyncio.to_thread(sink.close)
    assert [got.name for got in collector.spans] == [each.name for each in sent]
    got, first = collector.spans[0], sent[0]
    assert got.service == "ryokan-gateway"
    assert (got.trace_id, got.span_id) == (f"{first.context.trace_id:032x}", f"{first.context.span_id:016x}")
    assert got.parent_id == f"{first.context.parent_id:016x}"
    assert (got.start_ns, got.end_ns, got.kind, got.error) == (10**18, 10**18 + 5, 3, "closed")
    assert got.attributes == {"a": 1, "b": "c", "d": 0.5}


@pytest.mark.parametrize("kind", ["nobody", "refuses"])
async def test_a_collector_that_fails_costs_nothing_and_is_logged_once(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.sdk")
    caplog.set_level(logging.INFO)
    now = [0.0]
    async with Collector(status=400).serving() as collector:
        url = f"http://127.0.0.1:{spare_port()}" if kind == "nobody" else collector.url
        sink = SpanSink(OtlpSender(url, "s", "i"), lambda: now[0])
        for _ in range(3):
            sink.put([span()] * 1000)
            await asyncio.to_thread(sink._flush)
            assert not sink.is_on and not sink._queue
            now[0] += otel._BACK_OFF_S
            assert sink.is_on
        logged = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
        assert logged == ["the OpenTelemetry collector can't be reached; spans are dropped until it can"]
        collector.status = 200
        if kind == "refuses":
            sink.put([span()])
            await asyncio.to_thread(sink._flush)
            assert sink.is_on and len(collector.spans) == 1


def test_the_queue_is_bounded() -> None:
    sink = SpanSink(None)
    sink.put([span()] * 20_000)
    assert len(sink._queue) == otel._QUEUE and not sink.is_on
    sink.close()


def test_nothing_of_the_exporter_is_loaded_unless_it_is_wanted() -> None:
    """The bare API may be: redis-py looks for it."""
    code = "import sys, gateway.app, replica.run; sys.exit('opentelemetry.exporter' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_without_the_packages_there_is_a_warning_and_no_spans(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    assert not open_sink("http://127.0.0.1:1", "s", "i").is_on
    assert "pip install 'ryokan[otel]'" in caplog.text
