"""JSON schemas of what the gateway answers; requests are described by the models that validate them."""

from typing import Any

Schema = dict[str, Any]

INTEGER: Schema = {"type": "integer", "minimum": 0}
STRING: Schema = {"type": "string"}


def record(*, optional: Schema | None = None, **required: Schema) -> Schema:
    return {"type": "object", "properties": required | (optional or {}), "required": list(required)}


def maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


TOOL_CALL = record(
    id=STRING, type={"const": "function"}, function=record(name=STRING, arguments=STRING), optional={"index": INTEGER}
)
MESSAGE = record(role={"const": "assistant"}, content=maybe(STRING), optional={"tool_calls": array(TOOL_CALL)})
LOGPROBS = maybe({"type": "object"})
MORE = {"token_ids": array(INTEGER), "prompt_token_ids": array(INTEGER), "logprobs": LOGPROBS}
"""Where they are asked for."""

CHAT_CHOICE = record(
    index=INTEGER,
    message=MESSAGE,
    finish_reason={"enum": ["stop", "length", "tool_calls"]},
    optional=MORE,
)
TEXT_CHOICE = record(index=INTEGER, text=STRING, finish_reason={"enum": ["stop", "length"]}, optional=MORE)

ANSWERS: dict[str, Schema] = {
    "Error": record(
        error=record(message=STRING, type=STRING, param=maybe(STRING), code=maybe(STRING)),
    ),
    "Usage": record(
        prompt_tokens=INTEGER,
        completion_tokens=INTEGER,
        total_tokens=INTEGER,
        prompt_tokens_details=record(cached_tokens=INTEGER),
    ),
    "ChatCompletion": record(
        id=STRING,
        object={"const": "chat.completion"},
        created=INTEGER,
        model=STRING,
        choices=array(CHAT_CHOICE),
        usage=ref("Usage"),
    ),
    "Completion": record(
        id=STRING,
        object={"const": "text_completion"},
        created=INTEGER,
        model=STRING,
        choices=array(TEXT_CHOICE),
        usage=ref("Usage"),
    ),
    "Model": record(
        id=STRING, object={"const": "model"}, created=INTEGER, owned_by=STRING, optional={"max_model_len": INTEGER}
    ),
    "ModelList": record(object={"const": "list"}, data=array(ref("Model"))),
    "Tokens": record(
        count=INTEGER, max_model_len=INTEGER, tokens=array(INTEGER), token_strs=maybe(array(maybe(STRING)))
    ),
    "Detokenized": record(prompt=STRING),
    "Object": {"type": "object"},
    "List": {"type": "array"},
}
