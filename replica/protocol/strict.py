"""JSON bodies into models, strictly: whatever isn't understood is refused by the field's name."""

from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

_Model = TypeVar("_Model", bound="Strict")

_NESTED = ("messages", "tools", "response_format", "stream_options", "logit_bias")
"""Fields whose errors are located below their name. Elsewhere pydantic adds tags of union members, which mean nothing
to a client."""


class RequestError(ValueError):
    """The request can't be served as it is. `param` names the field, `code` is for machines."""

    def __init__(self, message: str, param: str | None = None, code: str | None = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def error_body(message: str, *, type: str, param: str | None = None, code: str | None = None) -> bytes:
    """The JSON body of every non-2xx answer."""
    return orjson.dumps({"error": {"message": message, "type": type, "param": param, "code": code}})


class Strict(BaseModel):
    """No unknown field, no conversion between types; an explicit null is the same as absent."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value


class Located(ValueError):
    """A rule that spans fields is broken; `param` names the one to blame."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


def parse(model: type[_Model], body: bytes) -> _Model:
    """Raises RequestError."""
    return validated(model, parse_object(body))


def parse_object(body: bytes) -> dict[str, Any]:
    """Raises RequestError."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is no valid JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object", code="invalid_json")
    return value


def validated(model: type[_Model], value: dict[str, Any]) -> _Model:
    """Raises RequestError."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _request_error(error) from error


def _request_error(error: ValidationError) -> RequestError:
    first = error.errors()[0]
    location = first["loc"] if first["loc"][:1] and first["loc"][0] in _NESTED else first["loc"][:1]
    param = ".".join(str(part) for part in location) or None
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, Located):
        param = f"{param}.{cause.param}" if param else cause.param
    if first["type"] == "extra_forbidden":
        return RequestError(f"unsupported field {param}", param)
    reason = first["msg"].removeprefix("Value error, ")
    return RequestError(f"{param}: {reason}" if param else reason, param)
