"""Requests as engines take them."""

from typing import Any

import orjson
import pytest

from adopt.config import Engine
from adopt.requests import engine_request
from replica.protocol.openai import parse_chat, parse_completion
from replica.protocol.strict import RequestError

PROMPT = [1, 2, 3]
TOOL = {"type": "function", "function": {"name": "look_up"}}


def chat(engine: Engine = Engine.VLLM, **fields: Any) -> dict[str, Any]:
    body = orjson.dumps({"model": "tiny", "prompt_token_ids": PROMPT} | fields)
    return engine_request(parse_chat(body), engine, "served", 100)


def completion(engine: Engine = Engine.VLLM, **fields: Any) -> dict[str, Any]:
    body = orjson.dumps({"model": "tiny", "prompt_token_ids": PROMPT} | fields)
    return engine_request(parse_completion(body), engine, "served", 100)


def test_defaults_are_said_outright() -> None:
    assert chat() == {
        "model": "served",
        "prompt": PROMPT,
        "max_tokens": 97,
        "n": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "skip_special_tokens": True,
    }
    assert completion()["max_tokens"] == 16


@pytest.mark.parametrize("engine", Engine)
def test_fields_that_both_engines_have(engine: Engine) -> None:
    fields = {
        "temperature": 0.5,
        "top_k": 7,
        "stop": ["\n"],
        "stop_token_ids": [5],
        "logit_bias": {"3": 1.5},
        "min_tokens": 2,
        "ignore_eos": True,
        "n": 2,
    }
    assert chat(engine, **fields).items() >= fields.items()
    assert completion(engine, echo=True, logprobs=3).items() >= {"echo": True, "logprobs": 3}.items()
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    assert chat(engine, response_format=schema)["response_format"] == schema


@pytest.mark.parametrize(
    ("seed", "sent"), [(0, 0), (-1, -1), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1)]
)
def test_seeds_are_signed(seed: int, sent: int) -> None:
    assert chat(seed=seed)["seed"] == sent


def test_streams_always_tell_their_usage() -> None:
    assert chat(stream=True)["stream_options"] == {"include_usage": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    assert chat(stream=True, stream_options=options)["stream_options"] == options


def test_constraints() -> None:
    assert chat(regex="a+")["structured_outputs"] == {"regex": "a+"}
    assert chat(Engine.SGLANG, regex="a+")["regex"] == "a+"
    assert chat(grammar="start: A")["structured_outputs"] == {"grammar": "start: A"}


def test_what_each_engine_calls_by_another_name() -> None:
    assert chat(include_stop_str_in_output=True)["include_stop_str_in_output"] is True
    assert chat(Engine.SGLANG, include_stop_str_in_output=True)["no_stop_trim"] is True
    assert (
        chat(cache_salt="x", priority=3, return_token_ids=True).items()
        >= {
            "cache_salt": "x",
            "priority": 3,
            "return_token_ids": True,
        }.items()
    )


def test_tools_keep_special_tokens_in_the_text() -> None:
    assert chat(tools=[TOOL])["skip_special_tokens"] is False
    assert chat(tools=[TOOL], tool_choice="none")["skip_special_tokens"] is True


@pytest.mark.parametrize(
    ("engine", "fields", "param"),
    [
        (Engine.VLLM, {"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        (Engine.SGLANG, {"grammar": "start: A"}, "grammar"),
        (Engine.SGLANG, {"return_token_ids": True}, "return_token_ids"),
        (Engine.SGLANG, {"priority": 1}, "priority"),
        (Engine.SGLANG, {"cache_salt": "x"}, "cache_salt"),
        (Engine.VLLM, {"max_tokens": 98}, "max_tokens"),
        (Engine.VLLM, {"prompt_token_ids": [], "messages": [{"role": "user", "content": "x"}]}, "prompt_token_ids"),
    ],
)
def test_what_cant_be_done_is_refused_by_name(engine: Engine, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(engine, **fields)
    assert caught.value.param == param


def test_salts_need_an_engine_that_tells_them() -> None:
    request = parse_chat(orjson.dumps({"model": "tiny", "prompt_token_ids": PROMPT, "cache_salt": "x"}))
    with pytest.raises(RequestError):
        engine_request(request, Engine.VLLM, "served", 100, tells_salts=False)
