from typing import Any

import pytest
from pydantic import ValidationError

from replica.protocol.messages import ChatMessage, Tool

CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": [1, null]}'}}


def rendered(**message: Any) -> dict[str, Any]:
    return ChatMessage.model_validate(message).for_template()


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for role in ("system", "user"):
        assert rendered(role=role, content=parts) == {"role": role, "content": "a\nb"}


def test_developer_is_system() -> None:
    assert rendered(role="developer", content="x") == {"role": "system", "content": "x"}


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_arguments_of_calls_become_objects_and_no_content_becomes_none(content: dict[str, Any]) -> None:
    message = rendered(role="assistant", tool_calls=[CALL], **content)
    assert message["content"] == ""
    assert message["tool_calls"] == [CALL | {"function": {"name": "f", "arguments": {"x": [1, None]}}}]


def test_answers_of_tools_keep_their_call() -> None:
    message = rendered(role="tool", tool_call_id="c1", name="f", content=[{"type": "text", "text": "21"}])
    assert message == {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "21"}


def test_null_calls_are_none() -> None:
    assert rendered(role="assistant", content="x", tool_calls=None) == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize("arguments", ["{", "[1]", "1", {"x": 1}])
def test_arguments_must_be_the_text_of_an_object(arguments: Any) -> None:
    call = CALL | {"function": {"name": "f", "arguments": arguments}}
    with pytest.raises(ValidationError) as caught:
        ChatMessage.model_validate({"role": "assistant", "tool_calls": [call]})
    assert caught.value.errors()[0]["loc"] == ("tool_calls", 0, "function", "arguments")


def test_only_an_assistant_makes_calls() -> None:
    with pytest.raises(ValidationError, match="makes no calls"):
        ChatMessage.model_validate({"role": "user", "content": "x", "tool_calls": [CALL]})


def test_tools_go_to_the_template_without_what_is_only_for_us() -> None:
    parameters = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"enum": [None]}}}
    function = {"name": "f", "description": "d", "parameters": parameters}
    tool = Tool.model_validate({"type": "function", "function": function | {"strict": True}})
    assert tool.for_template() == {"type": "function", "function": function}
    assert list(tool.for_template()["function"]["parameters"]["properties"]) == ["b", "a"]
