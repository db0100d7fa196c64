"""From the client's span to the engine's phases: a whole fleet, and a collector that receives what it exports."""

from pathlib import Path

import aiohttp
import pytest

from tests.gateway.fakes import eventually
from tests.otlp import Collector, Received
from tests.processes import Process

pytest.importorskip("opentelemetry.sdk")

TRACE, CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def test_a_request_is_one_trace_from_client_to_engine(tiny_folder: Path, tmp_path: Path) -> None:
    async with Collector().serving() as collector:
        command = ["deploy.cli", "up", "--model", str(tiny_folder), "--replicas", "1", "--port", "0"]
        fleet = Process(
            [*command, "--kv-memory-gib", "0.05"],
            tmp_path / "log",
            env={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url},
        )
        try:
            url = await _in_thread(fleet)
            body = {"model": tiny_folder.name, "prompt": "hello " * 20, "max_tokens": 8, "ignore_eos": True}
            given = {"traceparent": f"00-{TRACE}-{CLIENT}-01"}
            async with aiohttp.ClientSession() as http:
                model = (await (await http.get(f"{url}/v1/models")).json())["data"][0]["id"]
                for stream in (True, False):
                    asked = body | {"model": model, "stream": stream}
                    async with http.post(f"{url}/v1/completions", json=asked, headers=given) as response:
                        assert response.status == 200, await response.text()
                        await response.read()
                await eventually(lambda: len(collector.spans) >= 16, timeout_s=15)
        finally:
            fleet.stop()
    for index in range(2):
        _check(collector, index)


def _check(collector: Collector, index: int) -> None:
    request = collector.named("POST /v1/completions")[index]
    assert (request.service, request.trace_id, request.parent_id) == ("ryokan-gateway", TRACE, CLIENT)
    [attempt] = _below(collector, request, "attempt")
    [generate] = _below(collector, attempt, "generate")
    assert generate.service == "ryokan-replica"
    phases = [_below(collector, generate, name)[0] for name in ("queue", "prefill", "decode")]
    times = [(phase.start_ns, phase.end_ns) for phase in phases]
    assert all(start <= end for start, end in times)
    assert times[0][1] == times[1][0] and times[1][1] == times[2][0]
    assert request.start_ns <= attempt.start_ns <= generate.start_ns
    assert generate.attributes["gen_ai.usage.output_tokens"] == 8
    assert phases[1].attributes["ryokan.cached_tokens"] == (112 if index else 0)
    assert request.attributes["ryokan.cached_tokens.delivered"] == (112 if index else 0)
    assert {span.name for span in collector.spans if span.parent_id == request.span_id} == {
        "tokenise",
        "route",
        "attempt",
    }


def _below(collector: Collector, parent: Received, name: str) -> list[Received]:
    return [span for span in collector.named(name) if span.parent_id == parent.span_id]


async def _in_thread(fleet: Process) -> str:
    import asyncio

    return await asyncio.to_thread(fleet.wait_for, r"gateway +(http\S+)", 120)
