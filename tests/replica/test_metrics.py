"""The replica's exposition: names, types and buckets as vLLM's, and what requests leave in it."""

from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from replica.protocol import buckets
from tests.metric_pages import Page, parse
from tests.processes import Process
from tests.replica.test_server import arguments

HISTOGRAMS = {
    "time_to_first_token_seconds": buckets.TTFT,
    "inter_token_latency_seconds": buckets.ITL,
    "request_time_per_output_token_seconds": buckets.ITL,
    **{
        f"{name}_seconds": buckets.REQUEST
        for name in (
            "e2e_request_latency",
            "request_queue_time",
            "request_prefill_time",
            "request_decode_time",
            "request_inference_time",
        )
    },
    "iteration_tokens_total": (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    "request_prompt_tokens": buckets.TOKENS,
    "request_generation_tokens": buckets.TOKENS,
}
COUNTERS = (
    *("prompt_tokens", "prompt_tokens_cached", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits"),
    *("num_preemptions", "request_success", "admission_rejections"),
)
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "blocks_free", "blocks_total")


@pytest.fixture(scope="module")
def url(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = Process(arguments(tiny_folder), tmp_path_factory.mktemp("replica") / "log")
    yield process.wait_for(r"ready on (http\S+)")
    assert process.stop() == 0


async def complete(http: aiohttp.ClientSession, **fields: object) -> None:
    body = {"model": "tiny", "prompt": "p" * 40, "max_tokens": 20, "ignore_eos": True} | fields
    async with http.post("/v1/completions", json=body) as response:
        await response.read()


async def test_names_types_and_buckets(http: aiohttp.ClientSession) -> None:
    async with http.get("/metrics") as response:
        found = parse(await response.text())
    for name, bounds in HISTOGRAMS.items():
        full = f"ryokan_replica_{name}"
        assert (found.types[full], found.buckets[full]) == ("histogram", bounds), name
    assert all(found.types[f"ryokan_replica_{name}"] == "counter" for name in COUNTERS)
    assert all(found.types[f"ryokan_replica_{name}"] == "gauge" for name in GAUGES)
    reasons = {dict(labels).get("finished_reason") for name, labels in found.series if "request_success_total" in name}
    assert reasons == {"stop", "length", "abort", "error"}


async def test_what_requests_leave_behind(http: aiohttp.ClientSession) -> None:
    async def read() -> Page:
        async with http.get("/metrics") as response:
            return parse(await response.text())

    before = await read()
    for stream in (True, False):
        await complete(http, stream=stream)
    after = await read()

    def grown(name: str) -> float:
        return after.values[f"ryokan_replica_{name}"] - before.values[f"ryokan_replica_{name}"]

    assert grown("request_generation_tokens_sum") == grown("generation_tokens_total") == 40
    assert grown("inter_token_latency_seconds_count") == 38
    assert grown("prefix_cache_queries_total") == grown("request_prompt_tokens_sum") == 80
    assert grown("prefix_cache_hits_total") == 32
    for name in ("request_queue_time", "request_prefill_time", "request_decode_time", "e2e_request_latency"):
        assert grown(f"{name}_seconds_count") == 2
    phases = sum(grown(f"request_{name}_time_seconds_sum") for name in ("queue", "prefill", "decode"))
    assert phases == pytest.approx(grown("e2e_request_latency_seconds_sum"))
    assert grown("inter_token_latency_seconds_sum") == pytest.approx(grown("request_decode_time_seconds_sum"))
    assert after.series == before.series
    assert after.values["ryokan_replica_kv_cache_usage_perc"] == 0


async def test_an_abort_is_counted_as_one(http: aiohttp.ClientSession) -> None:
    async with http.post(
        "/v1/completions",
        json={"model": "tiny", "prompt": "p", "max_tokens": 500, "ignore_eos": True, "stream": True},
    ) as response:
        await response.content.readany()
    line = 'ryokan_replica_request_success_total{finished_reason="abort"} 1.0'
    for _ in range(200):
        async with http.get("/metrics") as answer:
            if line in await answer.text():
                return
    pytest.fail("never counted")
