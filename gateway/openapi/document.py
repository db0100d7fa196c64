"""The OpenAPI description of the gateway's public routes, from the models that requests are validated by. Pure.

What JSON Schema can't say stays unsaid: rules between fields, the length of the context, the vocabulary. So a request
that fits the description may still be refused with 400, and one that doesn't always is.
"""

from typing import Any

from pydantic.json_schema import models_json_schema

from gateway.openapi.answers import ANSWERS, STRING, Schema, maybe, ref
from gateway.openapi.examples import chat_examples, completion_examples
from replica.protocol import headers
from replica.protocol.openai import MAX_CHOICES, ChatRequest, CompletionRequest
from replica.protocol.tokenize import DetokenizeRequest, TokenizeRequest

VERSION = "3.1.0"
REQUESTS = (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
FROM_GATEWAYS_ONLY = ("prompt_token_ids", "public_prefix_tokens", "resume")

GENERATING = (400, 401, 403, 404, 413, 415, 429, 502, 503, 504)
READING = (400, 401, 403, 404, 413, 415, 503)


def document(models: list[str]) -> Schema:
    """`models`: the names that requests may ask for."""
    return {
        "openapi": VERSION,
        "info": {
            "title": "Ryokan",
            "version": "1",
            "description": "OpenAI's API. Every answer that isn't 2xx holds an Error, whatever made it.",
        },
        "paths": _paths(models),
        "components": {
            "schemas": _requests(models) | ANSWERS,
            "responses": {"Error": {"description": "What went wrong.", "content": _json(ref("Error"))}},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _paths(models: list[str]) -> Schema:
    name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    request_id = {"name": "request_id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    return {
        "/v1/chat/completions": {
            "post": _generating("ChatRequest", "ChatCompletion", "chat", *map(chat_examples, models[:1]))
        },
        "/v1/completions": {
            "post": _generating("CompletionRequest", "Completion", "completion", *map(completion_examples, models[:1]))
        },
        "/v1/models": {"get": _reading("models", "ModelList")},
        "/v1/models/{model}": {"get": _reading("model", "Model", name, example=models[0] if models else None)},
        "/tokenize": {"post": _posting("tokenize", "TokenizeRequest", "Tokens")},
        "/detokenize": {"post": _posting("detokenize", "DetokenizeRequest", "Detokenized")},
        "/health": {"get": _reading("health", "Object")},
        "/ready": {"get": _reading("ready", "Object")},
        "/replicas": {"get": _reading("replicas", "List")},
        "/route/explain/{request_id}": {"get": _reading("explain", "Object", request_id)},
        "/trace/{request_id}": {"get": _reading("trace", "Object", request_id)},
        "/route/shadow": {"get": _reading("shadow", "Object")},
        "/openapi.json": {"get": _reading("openapi", "Object")},
        "/metrics": {
            "get": {
                "operationId": "metrics",
                "responses": {
                    "200": {
                        "description": "Prometheus' text format.",
                        "content": {"text/plain": {"schema": {"type": "string"}}},
                    },
                    **_errors(READING),
                },
            }
        },
    }


def _generating(request: str, answer: str, operation: str, *examples: Schema) -> Schema:
    # A stream's schema is left open: 3.1 can't say that it holds for each event.
    content = _json(ref(answer)) | {"text/event-stream": {"schema": {}}}
    body = _json(ref(request))
    for each in examples:
        body["application/json"]["examples"] = each
    told = (headers.REQUEST_ID, headers.REPLICA, headers.POLICY, headers.REASON, headers.CACHED_TOKENS)
    return {
        "operationId": operation,
        "requestBody": {"required": True, "content": body},
        "responses": {
            "200": {
                "description": "The answer, or its events where `stream` is true.",
                "headers": {name: {"schema": {"type": "string"}} for name in told},
                "content": content,
            },
            **_errors(GENERATING),
        },
    }


def _posting(operation: str, request: str, answer: str) -> Schema:
    body = {"required": True, "content": _json(ref(request))}
    return {"operationId": operation, "requestBody": body, "responses": _ok(answer) | _errors(READING)}


def _reading(operation: str, answer: str, *parameters: Schema, example: str | None = None) -> Schema:
    found: Schema = {"operationId": operation, "responses": _ok(answer) | _errors(READING)}
    if parameters:
        more = {} if example is None else {"example": example}
        found["parameters"] = [parameter | more for parameter in parameters]
    return found


def _ok(answer: str) -> Schema:
    return {"200": {"description": "OK", "content": _json(ref(answer))}}


def _errors(statuses: tuple[int, ...]) -> Schema:
    return {str(status): {"$ref": "#/components/responses/Error"} for status in statuses}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _requests(models: list[str]) -> Schema:
    wanted = [(model, "validation") for model in REQUESTS]
    _, found = models_json_schema(wanted, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    schemas: dict[str, Any] = found["$defs"]
    for schema in schemas.values():
        _allow_null(schema)
    schemas["ChatMessage"] = _message(schemas["ChatMessage"]["properties"])
    for name in ("ChatRequest", "CompletionRequest"):
        schema = schemas[name]
        for field in FROM_GATEWAYS_ONLY:
            del schema["properties"][field]
        schema["properties"]["model"] = {"type": "string", "enum": models}
    _require(schemas["ChatRequest"], "messages", {"type": "array", "items": ref("ChatMessage"), "minItems": 1})
    _require(schemas["CompletionRequest"], "prompt", _prompt())
    for name in ("TokenizeRequest", "DetokenizeRequest"):
        schemas[name]["properties"]["model"] = maybe({"type": "string", "enum": models})
    return schemas


def _prompt() -> Schema:
    """One, or several."""
    text: Schema = {"type": "string", "minLength": 1}
    ids: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
    several = {"minItems": 1, "maxItems": MAX_CHOICES, "type": "array"}
    return {"anyOf": [text, ids, several | {"items": text}, several | {"items": ids}]}


def _message(fields: Schema) -> Schema:
    """By role: only an assistant calls tools, and only a tool answers a call."""
    content, calls = fields["content"]["anyOf"][:-1], fields["tool_calls"]["anyOf"][0]

    def of(*roles: str, required: Schema, optional: Schema) -> Schema:
        given = {"role": {"enum": list(roles)}, **required}
        return {
            "type": "object",
            "properties": given | {name: maybe(value) for name, value in (optional | {"name": STRING}).items()},
            "required": list(given),
            "additionalProperties": False,
        }

    text = {"content": {"anyOf": content}}
    return {
        "anyOf": [
            of("system", "developer", "user", required=text, optional={}),
            of("assistant", required=text, optional={"tool_calls": calls}),
            of("assistant", required={"tool_calls": calls | {"minItems": 1}}, optional=text),
            of("tool", required=text | {"tool_call_id": STRING}, optional={}),
        ]
    }


def _require(schema: Schema, name: str, value: Schema) -> None:
    schema["properties"][name] = value
    schema["required"] = [*schema.get("required", []), name]


def _allow_null(schema: Schema) -> None:
    """An explicit null is the same as an absent field; so is what stands in place of one by default."""
    required = schema.get("required", [])
    for name, value in schema.get("properties", {}).items():
        value.pop("title", None)
        default = value.pop("default", None)
        if name in required:
            continue
        options = value.get("anyOf", ())
        if {"type": "null"} not in options:
            value = {"anyOf": [*(options or [value]), {"type": "null"}]}
        schema["properties"][name] = value | ({} if default is None else {"default": default})
