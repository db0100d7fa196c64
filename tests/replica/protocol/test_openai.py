import json
from typing import Any

import orjson
import pytest

from replica.protocol.openai import RequestError, error_body, output_limit, parse_chat, parse_completion

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "hi"}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
STRICT_TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "strict": True}}
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
SCHEMA: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}

NULLABLE = [
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "stop_token_ids",
    "seed",
    "stream",
    "stream_options",
    "n",
    "logit_bias",
    "user",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "logprobs",
    "top_logprobs",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "response_format",
    "regex",
    "grammar",
    "return_token_ids",
    "priority",
    "cache_salt",
    "include_stop_str_in_output",
    "skip_special_tokens",
]

NOT_JSON_OBJECTS = [
    b"",
    b"{",
    b"[]",
    b"1",
    b'"x"',
    b"\xff\xfe",
    b"{} trailing",
    b'{"temperature": NaN}',
    b'{"a": 1e999}',
    b'{"a": "\\ud800"}',
    b"[" * 100_000,
]

GOOD: list[dict[str, Any]] = [
    {"n": 16},
    {"temperature": 0},
    {"temperature": 2},
    {"top_k": -1},
    {"top_k": 0},
    {"top_k": 5},
    {"min_p": 0},
    {"min_p": 1},
    {"presence_penalty": -2},
    {"frequency_penalty": 2},
    {"repetition_penalty": 10},
    {"repetition_penalty": 0.01},
    {"logit_bias": {"0": -100, "7": 100}},
    {"seed": -1},
    {"stop_token_ids": [1, 2]},
    {"include_stop_str_in_output": True},
    {"skip_special_tokens": False},
    {"ignore_eos": True, "min_tokens": 5},
    {"response_format": {"type": "text"}, "min_tokens": 5},
    {"response_format": {"type": "json_object"}},
    {"response_format": SCHEMA},
    {"regex": "[a-z]+"},
    {"grammar": 'start: "x"'},
    {"return_token_ids": True},
    {"priority": -7},
    {"cache_salt": "s"},
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"user": "u", "store": True, "metadata": {"a": "b"}},
]

BAD: list[tuple[dict[str, Any], str]] = [
    ({"stop": [1]}, "stop"),
    ({"stop": 1}, "stop"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop_token_ids": 1}, "stop_token_ids"),
    ({"stop_token_ids": ["1"]}, "stop_token_ids"),
    ({"stop_token_ids": [1] * 65}, "stop_token_ids"),
    ({"temperature": True}, "temperature"),
    ({"temperature": "0.7"}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"top_k": 10**30}, "top_k"),
    ({"min_p": -0.1}, "min_p"),
    ({"min_p": 1.1}, "min_p"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"seed": "1"}, "seed"),
    ({"seed": True}, "seed"),
    ({"seed": 2**64}, "seed"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"n": True}, "n"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 11}, "repetition_penalty"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1"),
    ({"logit_bias": {"1": "5"}}, "logit_bias.1"),
    ({"logit_bias": {"x": 5}}, "logit_bias"),
    ({"logit_bias": {"-1": 5}}, "logit_bias"),
    ({"logit_bias": {str(n): 1 for n in range(1025)}}, "logit_bias"),
    ({"logit_bias": [5]}, "logit_bias"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": SCHEMA | {"type": "json_object"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format.json_schema.name"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": []}}},
        "response_format.json_schema.schema",
    ),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": SCHEMA, "regex": "x"}, "regex"),
    ({"regex": "x", "grammar": 'start: "x"'}, "grammar"),
    ({"regex": ""}, "regex"),
    ({"regex": "x", "min_tokens": 3}, "min_tokens"),
    ({"regex": "x", "ignore_eos": True}, "ignore_eos"),
    ({"return_token_ids": 1}, "return_token_ids"),
    ({"priority": "high"}, "priority"),
    ({"priority": 2**63}, "priority"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": "x" * 257}, "cache_salt"),
    ({"cache_salt": 1}, "cache_salt"),
    ({"stream_options": {"frobnicate": 1}}, "stream_options.frobnicate"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"guided_json": {}}, "guided_json"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"truncate_prompt_tokens": 1}, "truncate_prompt_tokens"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"frobnicate": 1}, "frobnicate"),
]

BAD_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"logprobs": 1}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"tools": [{}]}, "tools.0.type"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools.0.function.parameters"),
    ({"tools": [TOOL, TOOL]}, "tools"),
    ({"tools": [STRICT_TOOL]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ({"tools": [TOOL], "response_format": SCHEMA}, "response_format"),
    ({"tools": [TOOL], "tool_choice": "required", "min_tokens": 3}, "min_tokens"),
    ({"functions": []}, "functions"),
    ({"messages": [{"role": "king", "content": "hi"}]}, "messages.0.role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
    ({"messages": [{"role": "user"}]}, "messages.0.content"),
    ({"messages": [{"role": "assistant", "content": None}]}, "messages.0.content"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id"),
    ({"messages": [{"role": "user", "content": "x", "tool_call_id": "1"}]}, "messages.0.tool_call_id"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"echo": True}, "echo"),
    ({"prompt": "x"}, "prompt"),
]

NO_PROMPTS: list[Any] = ["", [], [""], ["a", ""], [[]], [[1], []], {"a": 1}, None, 1]
NO_PROMPTS += [[1.5], [True], [[1], "a"], [None]]

BAD_COMPLETION: list[tuple[dict[str, Any], str]] = [
    ({"best_of": 2}, "best_of"),
    ({"suffix": "x"}, "suffix"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"echo": 1}, "echo"),
    ({"tools": [TOOL]}, "tools"),
    ({"messages": []}, "messages"),
    ({"prompt": ["x"] * 9, "n": 16}, "prompt"),
    *[({"prompt": prompt}, "prompt") for prompt in NO_PROMPTS],
]


def chat(**fields: Any) -> Any:
    return parse_chat(json.dumps(CHAT | fields).encode())


def completion(**fields: Any) -> Any:
    return parse_completion(json.dumps(COMPLETION | fields).encode())


def test_defaults() -> None:
    request = chat()
    assert (request.temperature, request.top_p, request.stream, request.seed) == (1.0, 1.0, False, None)
    assert (request.max_new_tokens, request.num_logprobs) == (None, None)
    assert completion().max_new_tokens == 16


@pytest.mark.parametrize("field", NULLABLE)
def test_null_is_the_same_as_absent(field: str) -> None:
    assert chat(**{field: None}) == chat()


@pytest.mark.parametrize("fields", GOOD)
@pytest.mark.parametrize("parse", [chat, completion])
def test_a_good_field_is_kept_as_it_is(parse: Any, fields: dict[str, Any]) -> None:
    dumped = parse(**fields).model_dump(exclude_unset=True, by_alias=True)
    assert {name: dumped[name] for name in fields} == fields


@pytest.mark.parametrize(("fields", "param"), BAD)
@pytest.mark.parametrize("parse", [chat, completion])
def test_a_bad_field_is_named(parse: Any, fields: dict[str, Any], param: str) -> None:
    refused(parse, fields, param)


@pytest.mark.parametrize(("fields", "param"), BAD_CHAT)
def test_a_bad_field_of_a_chat_is_named(fields: dict[str, Any], param: str) -> None:
    refused(chat, fields, param)


ADDED_BY_ROUTERS = {
    "no_stop_trim": False,
    "ignore_eos": False,
    "continue_final_message": False,
    "skip_special_tokens": True,
    "separate_reasoning": True,
    "stream_reasoning": True,
    "include_reasoning": True,
    "return_hidden_states": False,
    "logprobs": False,
}
"""What sglang-router 0.3.2 and vllm-router 0.1.17 add to a chat request that says nothing of it."""


def test_what_other_routers_add_changes_nothing() -> None:
    assert chat(**ADDED_BY_ROUTERS) == chat()


@pytest.mark.parametrize("field", sorted(ADDED_BY_ROUTERS.keys() - {"ignore_eos", "skip_special_tokens", "logprobs"}))
def test_what_other_routers_add_is_refused_where_it_would_mean_something(field: str) -> None:
    refused(chat, {field: not ADDED_BY_ROUTERS[field]}, field)


@pytest.mark.parametrize(("fields", "param"), BAD_COMPLETION)
def test_a_bad_field_of_a_completion_is_named(fields: dict[str, Any], param: str) -> None:
    refused(completion, fields, param)


def refused(parse: Any, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(**fields)
    assert caught.value.param == param
    assert param.split(".")[0] in str(caught.value)


@pytest.mark.parametrize(
    ("stop", "parsed"), [("x", ["x"]), (["x", "y"], ["x", "y"]), ("", []), ([], []), (["", "x"], ["x"])]
)
def test_forms_of_stop(stop: Any, parsed: list[str]) -> None:
    assert chat(stop=stop).stop == parsed


@pytest.mark.parametrize("body", NOT_JSON_OBJECTS)
def test_a_body_that_is_no_json_object(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse_chat(body)
    assert caught.value.code == "invalid_json"


def test_the_last_of_duplicate_keys_wins() -> None:
    body = b'{"model":"a","model":"b","messages":[{"role":"user","content":"x"}]}'
    assert parse_chat(body).model == "b"


def test_max_completion_tokens_wins_over_max_tokens() -> None:
    assert chat(max_tokens=3).max_new_tokens == 3
    assert chat(max_completion_tokens=4).max_new_tokens == 4
    assert chat(max_tokens=3, max_completion_tokens=4).max_new_tokens == 4


def test_large_seeds_stay_exact() -> None:
    assert chat(seed=2**53 + 1).seed == 2**53 + 1


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a"], ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2]], [[1, 2]]),
        ([[1], [2]], [[1], [2]]),
    ],
)
def test_forms_of_prompt(prompt: Any, prompts: Any) -> None:
    assert completion(prompt=prompt).prompts == prompts


def test_a_prompt_may_be_scored_without_an_answer() -> None:
    assert completion(echo=True, max_tokens=0, logprobs=0).max_new_tokens == 0


@pytest.mark.parametrize(
    ("fields", "may", "must"),
    [
        ({}, False, False),
        ({"tools": [TOOL]}, True, False),
        ({"tools": [TOOL], "tool_choice": "auto"}, True, False),
        ({"tools": [TOOL], "tool_choice": "none"}, False, False),
        ({"tools": [TOOL], "tool_choice": "required"}, True, True),
        ({"tools": [TOOL], "tool_choice": NAMED}, True, True),
        ({"tools": [STRICT_TOOL], "tool_choice": NAMED}, True, True),
        ({"tools": [TOOL], "tool_choice": "none", "response_format": SCHEMA}, False, False),
        ({"tools": [], "tool_choice": "none"}, False, False),
    ],
)
def test_whether_tools_may_or_must_be_called(fields: dict[str, Any], may: bool, must: bool) -> None:
    request = chat(**fields)
    assert (request.may_call, request.must_call) == (may, must)


@pytest.mark.parametrize(
    ("fields", "count"),
    [({}, None), ({"logprobs": False}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 20}, 20)],
)
def test_logprobs_of_a_chat(fields: dict[str, Any], count: int | None) -> None:
    assert chat(**fields).num_logprobs == count


def test_what_a_gateway_forwards_parses_the_same_again() -> None:
    fields = {"response_format": SCHEMA, "tool_choice": "none", "tools": [TOOL], "logit_bias": {"3": 1.5}, "n": 2}
    request = chat(**fields)
    again = parse_chat(orjson.dumps(request.model_dump(exclude_unset=True, by_alias=True)))
    assert again == request


@pytest.mark.parametrize(
    ("prompt", "asked", "limit"), [(90, 10, 10), (90, None, 10), (99, 1, 1), (99, None, 1), (1, 5, 5), (100, 0, 0)]
)
def test_output_limit(prompt: int, asked: int | None, limit: int) -> None:
    assert output_limit(prompt, asked, max_context=100) == limit


@pytest.mark.parametrize(("prompt", "asked"), [(90, 11), (100, None), (100, 1), (1, 10**12), (101, 0)])
def test_what_exceeds_the_context_is_refused(prompt: int, asked: int | None) -> None:
    with pytest.raises(RequestError) as caught:
        output_limit(prompt, asked, max_context=100)
    assert caught.value.code == "context_length_exceeded"
    assert "100" in str(caught.value)
    assert str(prompt) in str(caught.value)


def test_the_error_body() -> None:
    body = orjson.loads(error_body("no", type="t", param="p", code="c"))
    assert body == {"error": {"message": "no", "type": "t", "param": "p", "code": "c"}}
