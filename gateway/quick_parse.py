"""Chat requests of the usual fields and types, without pydantic; whatever else is in one, pydantic decides about.

The result is the same in all that can be seen: values, defaults and `model_fields_set` (the test's oracle is
`openai.parse_chat`). Only good requests are read here, so errors are always pydantic's.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel

from replica.protocol.messages import ChatMessage
from replica.protocol.openai import MAX_STOPS, ChatRequest, GenerateRequest
from replica.protocol.strict import parse_object, validated

_ROLES = frozenset(("system", "developer", "user", "assistant"))
_I63 = 2**63
_Model = TypeVar("_Model", bound=BaseModel)


_PLAIN = frozenset((str, int, float, bool))


def fields_given(request: GenerateRequest, without: Collection[str]) -> dict[str, Any]:
    """What was given, as a replica takes it: `model_dump` of those that aren't plain values."""
    values, given = request.__dict__, {}
    for name in request.__pydantic_fields_set__:
        if name not in without:
            value = values[name]
            if type(value) not in _PLAIN:
                return request.model_dump(exclude_unset=True, by_alias=True, exclude=set(without))
            given[name] = value
    return given


def changed(request: _Model, changes: Mapping[str, Any]) -> _Model:
    """As `model_copy`, but for deep looks at what isn't there: extra fields and private ones."""
    names = request.__pydantic_fields_set__.union(changes)
    return _made(type(request), {**request.__dict__, **changes}, names)


class _Other(Exception):
    """It has something that isn't read here."""


def parse_chat(body: bytes) -> ChatRequest:
    """Raises RequestError."""
    given = parse_object(body)
    try:
        return _request(given)
    except _Other:
        return validated(ChatRequest, given)


def _request(given: dict[str, Any]) -> ChatRequest:
    values, names = _DEFAULTS.copy(), set()
    for name, kind in _OWN_DEFAULTS:
        values[name] = kind()
    for name, value in given.items():
        if value is not None:
            try:
                read = _READERS[name]
            except KeyError:
                raise _Other from None
            values[name] = read(value)
            names.add(name)
    if "model" not in names or not values["messages"]:
        raise _Other
    return _made(ChatRequest, values, names)


def _made(model: type[_Model], values: dict[str, Any], names: set[str]) -> _Model:
    """As model_construct, but for looking at every field."""
    made = object.__new__(model)
    _SET_VALUES(made, values)
    _SET_NAMES(made, names)
    _SET_EXTRA(made, None)
    _SET_PRIVATE(made, None)
    return made


_SET_VALUES = BaseModel.__dict__["__dict__"].__set__
_SET_NAMES = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_SET_EXTRA = BaseModel.__dict__["__pydantic_extra__"].__set__
_SET_PRIVATE = BaseModel.__dict__["__pydantic_private__"].__set__


def _messages(value: Any) -> list[ChatMessage]:
    if type(value) is not list:
        raise _Other
    messages = []
    for each in value:
        if type(each) is not dict or len(each) != 2:
            raise _Other
        role, content = each.get("role"), each.get("content")
        if type(role) is not str or role not in _ROLES or type(content) is not str:
            raise _Other
        values: dict[str, Any] = {
            "role": role,
            "content": content,
            "name": None,
            "tool_calls": [],
            "tool_call_id": None,
        }
        messages.append(_made(ChatMessage, values, {"role", "content"}))
    return messages


def _of_type(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise _Other
    return value


def _integer(least: int, most: int, value: Any) -> int:
    if type(value) is not int or not least <= value <= most:
        raise _Other
    return value


def _number(least: float, most: float, value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise _Other
    if not least <= value <= most:
        raise _Other
    return float(value)


def _stops(value: Any) -> list[str]:
    stops = [value] if type(value) is str else value
    if type(stops) is not list:
        raise _Other
    stops = [_of_type(str, stop) for stop in stops if stop != ""]
    if len(stops) > MAX_STOPS:
        raise _Other
    return stops


_READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("model", "user"), partial(_of_type, str)),
    **dict.fromkeys(("stream", "ignore_eos"), partial(_of_type, bool)),
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), partial(_integer, 1, _I63 - 1)),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), partial(_number, -2, 2)),
    **dict.fromkeys(("min_p",), partial(_number, 0, 1)),
    "messages": _messages,
    "temperature": partial(_number, 0, 2),
    "top_p": partial(_number, 5e-324, 1),
    "top_k": partial(_integer, -1, 2**31 - 1),
    "n": partial(_integer, 1, 16),
    "seed": partial(_integer, -_I63, _I63 - 1),
    "priority": partial(_integer, -_I63, _I63 - 1),
    "stop": _stops,
}


def _defaults(model: type[BaseModel]) -> dict[str, Any]:
    fields = model.model_fields
    return {
        name: None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
        for name, field in fields.items()
    }


_DEFAULTS = _defaults(ChatRequest)
_OWN_DEFAULTS = tuple((name, type(value)) for name, value in _DEFAULTS.items() if isinstance(value, list | dict))
"""That no two requests share."""
