"""The quick parser beside pydantic."""

from random import Random
from typing import Any

import orjson
import pytest

from gateway import quick_parse
from replica.protocol import openai
from replica.protocol.openai import ChatRequest, RequestError

MESSAGE = {"role": "user", "content": "Hello"}
USUAL: dict[str, tuple[Any, ...]] = {
    "model": ("m", "", 1, None),
    "messages": (
        [MESSAGE],
        [{"role": "system", "content": ""}, MESSAGE, {"role": "assistant", "content": "é"}],
        [{"role": "developer", "content": "x"}],
        [],
        None,
        "Hello",
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        [{"role": "tool", "content": "a"}],
        [{"role": "tool", "content": "a", "tool_call_id": "1"}],
        [{"role": "user", "content": "a", "name": "b"}],
        [{"role": "user", "content": "a", "nmae": "b"}],
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": ""}}],
            }
        ],
        [{"role": ["user"], "content": "a"}],
        ["user"],
    ),
    "user": ("u", None, 3),
    "stream": (True, False, None, 1, "true"),
    "stream_options": ({"include_usage": True}, {}, None),
    "ignore_eos": (True, False),
    "max_tokens": (1, 64, 0, -1, True, 1.0, 2**63, 2**64, None, "1"),
    "max_completion_tokens": (1, 64, 0, None),
    "min_tokens": (0, 1),
    "n": (1, 16, 17, 0, True),
    "temperature": (0, 0.7, 2, 2.5, -0.0, True, "1", None, 1e-310),
    "top_p": (0, 1e-9, 5e-324, 1, 1.5, 1.0),
    "top_k": (0, -1, -2, 2**31 - 1, 2**31),
    "min_p": (0, 0.5, 1, 2),
    "presence_penalty": (-2, 2, 2.1, 0.0),
    "frequency_penalty": (-2.0, 1, 3),
    "seed": (0, -(2**63), 2**63, 2**64 - 1, 2**64, 1.5),
    "priority": (0, -5, 2**63 - 1, 2**63),
    "stop": ("", "x", [], ["", "x"], ["a"] * 4, ["a"] * 5, ["a"] * 4 + [""], [1], None, 5, [None]),
    "response_format": ({"type": "text"}, {"type": "json_object"}),
    "tools": ([], [{"type": "function", "function": {"name": "f"}}]),
    "logit_bias": ({}, {"5": 1}),
    "metadata": ({"a": "b"},),
    "cache_salt": ("s", ""),
    "unknown": (1, None),
}


def outcome(parse: Any, body: bytes) -> Any:
    try:
        return parse(body)
    except RequestError as error:
        return str(error), error.param, error.code


def assert_same(fields: dict[str, Any]) -> ChatRequest | None:
    body = orjson.dumps(fields, option=orjson.OPT_NON_STR_KEYS)
    quick, plain = outcome(quick_parse.parse_chat, body), outcome(openai.parse_chat, body)
    assert quick == plain, fields
    if not isinstance(plain, ChatRequest):
        return None
    assert quick.model_fields_set == plain.model_fields_set
    assert [type(value) for value in quick.__dict__.values()] == [type(value) for value in plain.__dict__.values()]
    assert list(quick.__dict__) == list(plain.__dict__)
    for mine, other in zip(quick.messages, plain.messages, strict=True):
        assert mine.model_fields_set == other.model_fields_set
        assert mine.for_template() == other.for_template()
    assert quick.model_dump(exclude_unset=True, by_alias=True) == plain.model_dump(exclude_unset=True, by_alias=True)
    for changes in ({"cache_salt": "x"}, {"model": "n", "cache_salt": None}):
        changed, copied = quick_parse.changed(quick, changes), plain.model_copy(update=changes)
        assert changed == copied and changed.model_fields_set == copied.model_fields_set
        assert changed.model_dump(exclude_unset=True) == copied.model_dump(exclude_unset=True)
    assert quick == plain
    return plain


@pytest.mark.parametrize("name", USUAL)
def test_each_field_by_itself(name: str) -> None:
    for value in USUAL[name]:
        try:
            assert_same({"model": "m", "messages": [MESSAGE], name: value})
        except TypeError:  # Beyond what JSON libraries write.
            text = f'{{"model": "m", "messages": [{{"role": "user", "content": "x"}}], "{name}": {value}}}'.encode()
            assert outcome(quick_parse.parse_chat, text) == outcome(openai.parse_chat, text)


@pytest.mark.parametrize("seed", range(4))
def test_fields_at_random_are_read_as_pydantic_does(seed: int) -> None:
    print("seed", seed)
    rng = Random(seed)
    good = 0
    for _ in range(300):
        names = rng.sample(sorted(USUAL), k=rng.randrange(6))
        fields = {name: rng.choice(USUAL[name][: rng.choice((1, 2, 99))]) for name in names}
        fields = {"model": "m", "messages": [MESSAGE]} | fields
        order = rng.sample(sorted(fields), k=len(fields))
        try:
            good += assert_same({name: fields[name] for name in order}) is not None
        except TypeError:
            continue
    assert good > 30


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model": NaN}', b'{"a": 1, "a": 2}', b'"\xff"'])
def test_what_is_no_object_gets_the_same_error(body: bytes) -> None:
    assert outcome(quick_parse.parse_chat, body) == outcome(openai.parse_chat, body)


def test_of_a_usual_request_pydantic_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_parse, "validated", lambda model, value: pytest.fail("validated"))
    fields = {"messages": [MESSAGE], "model": "m", "max_tokens": 5, "temperature": 1, "stream": True, "user": None}
    assert quick_parse.parse_chat(orjson.dumps(fields)).temperature == 1.0


def test_requests_share_no_lists() -> None:
    body = orjson.dumps({"model": "m", "messages": [MESSAGE]})
    one, other = quick_parse.parse_chat(body), quick_parse.parse_chat(body)
    can_change = [name for name, value in one.__dict__.items() if isinstance(value, list | dict)]
    assert {"stop", "logit_bias"} < set(can_change)
    assert not [name for name in can_change if one.__dict__[name] is other.__dict__[name]]
    assert one.messages[0].tool_calls is not other.messages[0].tool_calls


def test_what_is_forwarded_is_what_was_given() -> None:
    print("seed", 1)
    rng = Random(1)
    for _ in range(300):
        names = rng.sample(sorted(USUAL), k=rng.randrange(6))
        fields = {"model": "m", "messages": [MESSAGE]} | {name: rng.choice(USUAL[name]) for name in names}
        try:
            request = openai.parse_chat(orjson.dumps(fields))
        except (RequestError, TypeError):
            continue
        without = {"model", "messages", "seed"}
        dumped = request.model_dump(exclude_unset=True, by_alias=True, exclude=without)
        assert quick_parse.fields_given(request, without) == dumped
