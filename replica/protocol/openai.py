"""OpenAI's public wire format: requests, validated strictly, and the shape of errors.

A field that isn't supported is refused by name and never silently ignored; an explicit null is the same as absent.
"""

from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

MAX_STOPS = 4

_Request = TypeVar("_Request", bound="GenerateRequest")


class RequestError(ValueError):
    """The request can't be served as it is. `param` names the field, `code` is for machines."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def error_body(message: str, *, type: str, param: str | None = None, code: str | None = None) -> bytes:
    """The JSON body of every non-2xx answer."""
    return orjson.dumps({"error": {"message": message, "type": type, "param": param, "code": code}})


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


def _stop_list(stop: Any) -> Any:
    """A string is a list of one; empty stops are as if absent."""
    if stop is None:
        return []
    if isinstance(stop, str):
        stop = [stop]
    return [item for item in stop if item != ""] if isinstance(stop, list) else stop


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value


class ChatMessage(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_content_text)]
    name: str | None = None

    def for_template(self) -> dict[str, str]:
        return {"role": "system" if self.role == "developer" else self.role, "content": self.content}


class StreamOptions(_Strict):
    include_usage: bool = False


class GenerateRequest(_Strict):
    """What chat and completion requests share.

    The last group of fields is accepted at the one value that asks for nothing, since clients send them as such, or
    (user, store, metadata) has no effect on the answer.
    """

    model: str
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    temperature: float = Field(default=1.0, ge=0, le=2, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1, allow_inf_nan=False)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    stop: Annotated[list[str], Field(max_length=MAX_STOPS), BeforeValidator(_stop_list)] = []
    ignore_eos: bool = False
    """Go on after the model has ended its answer."""
    min_tokens: int = Field(default=0, ge=0)
    """The model can't end its answer, and no stop string does, before so many tokens."""

    n: Literal[1] = 1
    frequency_penalty: float = Field(default=0, ge=0, le=0)
    presence_penalty: float = Field(default=0, ge=0, le=0)
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] = {}
    user: str | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None

    prompt_token_ids: list[int] | None = None
    """From a gateway to a replica: the prompt, already tokenised. A gateway refuses it from clients."""

    @property
    def max_new_tokens(self) -> int | None:
        raise NotImplementedError


class ChatRequest(GenerateRequest):
    messages: list[ChatMessage] = []
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: Literal[False] = False
    tools: Annotated[list[Any], Field(max_length=0)] = []

    @model_validator(mode="after")
    def _has_a_prompt(self) -> "ChatRequest":
        if not self.messages and self.prompt_token_ids is None:
            raise ValueError("messages must hold at least one message")
        return self

    @property
    def max_new_tokens(self) -> int | None:
        """The newer name wins where both are given."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionRequest(GenerateRequest):
    prompt: str | list[str] | list[int] | list[list[int]] | None = None
    max_tokens: int = Field(default=16, ge=1)
    echo: Literal[False] = False
    best_of: Literal[1] = 1

    @model_validator(mode="after")
    def _has_one_prompt(self) -> "CompletionRequest":
        if self.prompt_token_ids is None and not self.single_prompt:
            raise ValueError("prompt must be one non-empty string or list of token ids")
        return self

    @property
    def single_prompt(self) -> str | list[int] | None:
        """None where there is no prompt, or more than one."""
        prompt = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            first = prompt[0]
            return first if len(prompt) == 1 else None
        return prompt  # type: ignore[return-value]

    @property
    def max_new_tokens(self) -> int | None:
        return self.max_tokens


def parse_chat(body: bytes) -> ChatRequest:
    """Raises RequestError."""
    return _validate(ChatRequest, _json_object(body))


def parse_completion(body: bytes) -> CompletionRequest:
    """Raises RequestError."""
    return _validate(CompletionRequest, _json_object(body))


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is no valid JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object", code="invalid_json")
    return value


def _validate(model: type[_Request], value: dict[str, Any]) -> _Request:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        location = first["loc"]
        # Past the field's name pydantic adds tags of union members, which mean nothing to a client.
        nested = location[:1] if location[:1] != ("messages",) else location[:3]
        param = ".".join(str(part) for part in nested) or None
        reason = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = f"unsupported field {param}"
        else:
            message = f"{param}: {reason}" if param else reason
        raise RequestError(message, param=param, code="invalid_value") from error


def output_limit(prompt_tokens: int, max_new_tokens: int | None, max_context: int) -> int:
    """Tokens that the answer may have. Raises RequestError where prompt and answer together don't fit the context."""
    room = max_context - prompt_tokens
    asked = 1 if max_new_tokens is None else max_new_tokens
    if asked > room:
        raise RequestError(
            f"the model's context is {max_context} tokens; the prompt has {prompt_tokens} and the answer was to have"
            f" {'some' if max_new_tokens is None else max_new_tokens}",
            param="messages" if max_new_tokens is None else "max_tokens",
            code="context_length_exceeded",
        )
    return room if max_new_tokens is None else max_new_tokens
