"""Shapes of answers that the proxy's tests don't reach: calls of tools, and nonsense."""

from typing import Any

import orjson
import pytest

from adopt.answers import BadAnswer, Reshaper
from replica.protocol.openai import parse_chat
from replica.protocol.tools import ToolFormat

TOOLS = [{"type": "function", "function": {"name": "look_up"}}]
CALL = '<tool_call>{"name": "look_up", "arguments": {"city": "Kyoto"}}</tool_call>'


def form(**fields: Any) -> Reshaper:
    request = parse_chat(orjson.dumps({"model": "tiny", "prompt_token_ids": [1]} | fields))
    return Reshaper(request, "abc", "tiny", 1, ToolFormat.HERMES)


def answer(text: str, reason: str | None = "stop", index: int = 0) -> bytes:
    return orjson.dumps({"choices": [{"index": index, "text": text, "finish_reason": reason}]})


def test_calls_of_tools() -> None:
    [choice] = orjson.loads(form(tools=TOOLS).whole(answer(f"Let me see. {CALL}")))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see. "
    [call] = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "look_up", "arguments": '{"city":"Kyoto"}'}


def test_calls_of_tools_in_a_stream() -> None:
    reshaper = form(tools=TOOLS, stream=True)
    deltas = []
    for position in range(0, len(CALL), 7):
        event = reshaper.event(answer(CALL[position : position + 7], None))
        deltas.append(orjson.loads(event.removeprefix(b"data: "))["choices"][0])
    deltas.append(orjson.loads(reshaper.event(answer("", "stop")).removeprefix(b"data: "))["choices"][0])
    assert "".join(choice["delta"].get("content", "") for choice in deltas) == ""
    assert deltas[-1]["finish_reason"] == "tool_calls"
    [call] = deltas[-1]["delta"]["tool_calls"]
    assert (call["index"], call["function"]["name"]) == (0, "look_up")


def test_text_that_looks_like_a_call_without_tools_is_text() -> None:
    [choice] = orjson.loads(form().whole(answer(CALL)))["choices"]
    assert choice["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"choices": [1]}'])
def test_nonsense_is_an_error(body: bytes) -> None:
    with pytest.raises(BadAnswer):
        form().whole(body)
    with pytest.raises(BadAnswer):
        form(stream=True).event(body)


def test_a_missing_number_of_cached_tokens_is_unknown() -> None:
    reshaper = form()
    body = orjson.loads(answer("x")) | {"usage": {"prompt_tokens": 5, "prompt_tokens_details": None}}
    assert "prompt_tokens_details" not in orjson.loads(reshaper.whole(orjson.dumps(body)))["usage"]
    assert reshaper.cached_tokens is None
