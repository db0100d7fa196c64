"""An engine's own pages."""

import aiohttp
import pytest

from adopt.config import Engine
from adopt.engine import EngineClient, EngineLoad, EngineUnreachable, Health, Served, parse_load
from replica.protocol.text import ModelText
from tests.adopt.fake_engine import VLLM_METRICS, FakeEngine

SGLANG_METRICS = """# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0"} 2.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 5.0
sglang:token_usage{model_name="m",tp_rank="0"} 0.5
sglang:max_total_num_tokens{model_name="m",tp_rank="0"} 4096.0
"""


def test_load_of_vllm() -> None:
    assert parse_load(Engine.VLLM, VLLM_METRICS) == EngineLoad(3, 2, 0.25, 3200)
    older = VLLM_METRICS.replace("kv_cache_usage_perc", "gpu_cache_usage_perc")
    assert parse_load(Engine.VLLM, older).usage == 0.25
    two = VLLM_METRICS + VLLM_METRICS.replace('engine="0"', 'engine="1"')
    assert parse_load(Engine.VLLM, two) == EngineLoad(6, 4, 0.25, 6400)


def test_load_of_sglang() -> None:
    assert parse_load(Engine.SGLANG, SGLANG_METRICS) == EngineLoad(2, 5, 0.5, 4096)


def test_pages_that_say_nothing() -> None:
    assert parse_load(Engine.VLLM, "") == parse_load(Engine.SGLANG, VLLM_METRICS) == EngineLoad()
    assert parse_load(Engine.VLLM, "\nvllm:num_requests_running x\n") == EngineLoad()


async def test_what_an_engine_says_over_http(tiny_text: ModelText) -> None:
    engine = FakeEngine(tiny_text)
    async with engine.serving(), aiohttp.ClientSession() as session:
        client = EngineClient(session, Engine.VLLM, engine.url)
        assert await client.health() is Health.OK
        assert await client.served() == Served("served", 2048)
        assert (await client.load()).waiting == 2
        assert await client.tokenize("served", "a b") == tiny_text.encode_plain("a b", add_special_tokens=False)
        engine.healthy, engine.tokenizes, engine.max_model_len = False, False, None
        assert await client.health() is Health.BAD
        assert await client.tokenize("served", "a b") is None
        assert await client.served() == Served("served", None)
    async with aiohttp.ClientSession() as session:
        client = EngineClient(session, Engine.VLLM, engine.url)
        assert await client.health() is Health.BAD
        with pytest.raises(EngineUnreachable):
            await client.served()
