"""Messages of a chat, and the tools that its answer may call."""

import re
from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from replica.protocol.strict import Located, Strict

_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def _content_text(content: Any) -> Any:
    """A list of text parts is their texts joined by newlines."""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else part
            raise ValueError(f"content parts must be text, not {kind!r}")
        texts.append(part["text"])
    return "\n".join(texts)


def _function_name(name: Any) -> Any:
    if isinstance(name, str) and not _FUNCTION_NAME.fullmatch(name):
        raise ValueError("a function's name is 1 to 64 letters, digits, dots, dashes and underscores")
    return name


def _json_object(text: Any) -> Any:
    if isinstance(text, str):
        try:
            value = orjson.loads(text or "{}")
        except orjson.JSONDecodeError as error:
            raise ValueError(f"the arguments of a call must be JSON: {error}") from error
        if not isinstance(value, dict):
            raise ValueError("the arguments of a call must be a JSON object")
    return text


_Name = Annotated[
    str, BeforeValidator(_function_name), WithJsonSchema({"type": "string", "pattern": f"^{_FUNCTION_NAME.pattern}$"})
]

_TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_TextParts = Annotated[list[Any], WithJsonSchema({"type": "array", "items": _TEXT_PART})]


class CalledFunction(Strict):
    name: _Name
    arguments: Annotated[str, BeforeValidator(_json_object)]
    """JSON text of an object."""


class ToolCall(Strict):
    id: str = Field(min_length=1)
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """Arguments as an object: templates write it as JSON themselves."""
        arguments = orjson.loads(self.function.arguments or "{}")
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": self.type, "function": function}


def template_role(role: str) -> str:
    """As chat templates know it."""
    return "system" if role == "developer" else role


class ChatMessage(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_content_text, json_schema_input_type=str | _TextParts)] = ""
    name: str | None = None
    tool_calls: list[ToolCall] = Field(default_factory=list)
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _fits_its_role(self) -> "ChatMessage":
        if "content" not in self.model_fields_set and not self.tool_calls:
            raise Located("only a message with tool_calls may be without content", "content")
        if self.tool_calls and self.role != "assistant":
            raise Located(f"a message of role {self.role} makes no calls", "tool_calls")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise Located("a message of role tool, and no other, answers the call of this id", "tool_call_id")
        return self

    def for_template(self) -> dict[str, Any]:
        """Content is never None: templates would write that into the prompt."""
        message: dict[str, Any] = {
            "role": template_role(self.role),
            "content": self.content,
        }
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class Function(Strict):
    name: _Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema; absent: no arguments."""
    strict: bool | None = None

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        return self.parameters or {"type": "object", "properties": {}, "additionalProperties": False}


class Tool(Strict):
    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """As transformers passes tools to templates."""
        function = self.function.model_dump(exclude_unset=True, exclude={"strict"})
        return {"type": self.type, "function": function}


class FunctionName(Strict):
    name: _Name


class NamedTool(Strict):
    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["auto", "none", "required"] | NamedTool


class JsonSchema(Strict):
    name: str = Field(min_length=1, max_length=64)
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None
    """Accepted for its own sake: an answer follows the schema in any case."""


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> "ResponseFormat":
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise Located("goes with the type json_schema, and only with it", "json_schema")
        return self
