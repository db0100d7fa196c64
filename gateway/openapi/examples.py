"""Requests that are answered, of each kind: for people who read the description, and for whoever tests against it."""

from typing import Any

HELLO = [{"role": "user", "content": "Is there a ramp?"}]
TURNS = [
    {"role": "system", "content": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]},
    *HELLO,
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": ""},
]
SCHEMA = {"type": "object", "properties": {"ramp": {"type": "boolean"}}, "required": ["ramp"]}


def chat_examples(model: str) -> dict[str, Any]:
    return _named(
        {"model": model, "max_tokens": 8},
        short={"messages": HELLO},
        stream={"messages": HELLO, "stream": True, "stream_options": {"include_usage": True}},
        turns={"messages": TURNS, "temperature": 0.5, "top_p": 0.9, "seed": 1, "stop": ["\n"], "user": "agent-7"},
        choices={"messages": HELLO, "n": 2, "logprobs": True, "top_logprobs": 2},
        shaped={
            "messages": HELLO,
            "max_tokens": 64,
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
        },
        nulls={"messages": HELLO, "stop": None, "tools": None, "seed": None, "n": None, "stream_options": None},
    )


def completion_examples(model: str) -> dict[str, Any]:
    return _named(
        {"model": model, "max_tokens": 8},
        text={"prompt": "Once upon a time"},
        stream={"prompt": "Once upon a time", "stream": True},
        tokens={"prompt": [1, 2, 3], "temperature": 0, "logprobs": 2},
        echo={"prompt": "Once", "echo": True, "max_tokens": 1},
        several={"prompt": ["Once upon a time", "Is there a ramp?"], "n": 2},
    )


def _named(common: dict[str, Any], **each: dict[str, Any]) -> dict[str, Any]:
    return {name: {"value": common | fields} for name, fields in each.items()}
