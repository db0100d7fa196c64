from typing import Any

import orjson
import pytest

from replica.protocol.openai import RequestError, error_body, output_limit, parse_chat, parse_completion

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "hi"}

NULLABLE = [
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "seed",
    "stream",
    "stream_options",
    "n",
    "logit_bias",
    "user",
    "temperature",
    "top_p",
    "tools",
    "logprobs",
    "presence_penalty",
    "frequency_penalty",
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


def chat(**fields: Any) -> Any:
    return parse_chat(orjson.dumps(CHAT | fields))


def test_defaults() -> None:
    request = chat()
    assert (request.temperature, request.top_p, request.stream, request.seed) == (1.0, 1.0, False, None)
    assert request.max_new_tokens is None
    assert parse_completion(orjson.dumps(COMPLETION)).max_new_tokens == 16


@pytest.mark.parametrize("field", NULLABLE)
def test_null_is_the_same_as_absent(field: str) -> None:
    assert chat(**{field: None}) == chat()


@pytest.mark.parametrize(
    ("stop", "parsed"), [("x", ["x"]), (["x", "y"], ["x", "y"]), ("", []), ([], []), (["", "x"], ["x"])]
)
def test_forms_of_stop(stop: Any, parsed: list[str]) -> None:
    assert chat(stop=stop).stop == parsed


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": [1]}, "stop"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"temperature": True}, "temperature"),
        ({"temperature": "0.7"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"seed": "1"}, "seed"),
        ({"n": 2}, "n"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"tools": [{}]}, "tools"),
        ({"frobnicate": 1}, "frobnicate"),
        ({"messages": [{"role": "king", "content": "hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
    ],
)
def test_a_bad_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert param.split(".")[0] in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
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
        b"[" * 100000,
    ],
)
def test_a_body_that_is_no_json_object(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse_chat(body)
    assert caught.value.code == "invalid_json"


def test_the_last_of_duplicate_keys_wins() -> None:
    body = b'{"model":"a","model":"b","messages":[{"role":"user","content":"x"}]}'
    assert parse_chat(body).model == "b"


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat(messages=[{"role": "user", "content": parts}]).messages[0].content == "a\nb"


def test_developer_is_system() -> None:
    message = chat(messages=[{"role": "developer", "content": "x"}]).messages[0]
    assert message.for_template() == {"role": "system", "content": "x"}


def test_max_completion_tokens_wins_over_max_tokens() -> None:
    assert chat(max_tokens=3).max_new_tokens == 3
    assert chat(max_completion_tokens=4).max_new_tokens == 4
    assert chat(max_tokens=3, max_completion_tokens=4).max_new_tokens == 4


def test_large_seeds_stay_exact() -> None:
    assert chat(seed=2**53 + 1).seed == 2**53 + 1


@pytest.mark.parametrize(("prompt", "single"), [("a", "a"), (["a"], "a"), ([1, 2], [1, 2]), ([[1, 2]], [1, 2])])
def test_forms_of_prompt(prompt: Any, single: Any) -> None:
    assert parse_completion(orjson.dumps(COMPLETION | {"prompt": prompt})).single_prompt == single


@pytest.mark.parametrize("prompt", ["", [], ["a", "b"], [[1], [2]], [[]], {"a": 1}, None])
def test_prompts_that_are_not_exactly_one(prompt: Any) -> None:
    with pytest.raises(RequestError, match="prompt"):
        parse_completion(orjson.dumps(COMPLETION | {"prompt": prompt}))


def test_an_empty_chat_is_refused() -> None:
    with pytest.raises(RequestError, match="messages"):
        chat(messages=[])


@pytest.mark.parametrize(
    ("prompt", "asked", "limit"), [(90, 10, 10), (90, None, 10), (99, 1, 1), (99, None, 1), (1, 5, 5)]
)
def test_output_limit(prompt: int, asked: int | None, limit: int) -> None:
    assert output_limit(prompt, asked, max_context=100) == limit


@pytest.mark.parametrize(("prompt", "asked"), [(90, 11), (100, None), (100, 1), (1, 10**12)])
def test_what_exceeds_the_context_is_refused(prompt: int, asked: int | None) -> None:
    with pytest.raises(RequestError) as caught:
        output_limit(prompt, asked, max_context=100)
    assert caught.value.code == "context_length_exceeded"
    assert "100" in str(caught.value)
    assert str(prompt) in str(caught.value)


def test_the_error_body() -> None:
    body = orjson.loads(error_body("no", type="t", param="p", code="c"))
    assert body == {"error": {"message": "no", "type": "t", "param": "p", "code": "c"}}
