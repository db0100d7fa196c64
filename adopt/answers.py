"""Answers of an engine's /v1/completions, in the shape that the request asked for. Pure: one object an answer."""

from collections.abc import Mapping
from typing import Any

import orjson

from adopt.requests import may_call
from replica.answer.tool_calls import Call, CallSplitter
from replica.protocol.openai import ChatRequest, GenerateRequest
from replica.protocol.tools import ToolFormat

DONE_EVENT = b"data: [DONE]\n\n"


class BadAnswer(ValueError):
    """The engine answers with something else than a completion."""


class Reshaper:
    def __init__(
        self, request: GenerateRequest, request_id: str, model: str, created: int, tool_format: ToolFormat | None
    ) -> None:
        self._request = request
        self._chat = isinstance(request, ChatRequest)
        self._tool_format = tool_format
        prefix, self._kind = ("chatcmpl", "chat.completion") if self._chat else ("cmpl", "text_completion")
        self._head = {"id": f"{prefix}-{request_id}", "created": created, "model": model}
        self._opened: set[int] = set()
        self._splitters: dict[int, CallSplitter] = {}
        self.failure: object = None
        """What the engine sent for an error within a stream."""
        self.cached_tokens: int | None = None
        """Of the prompt; None as long as the engine hasn't said."""

    def whole(self, body: bytes) -> bytes:
        """Raises BadAnswer."""
        answer = _object(body)
        choices = [self._whole_choice(choice) for choice in _choices(answer)]
        shaped: dict[str, Any] = self._head | {"object": self._kind, "choices": choices}
        shaped["usage"] = self._usage(answer)
        return orjson.dumps(shaped | self._prompt_ids())

    def event(self, data: bytes) -> bytes:
        """A server-sent event's data as our event, or nothing where the client didn't ask for it. Raises BadAnswer."""
        chunk = _object(data)
        if chunk.get("error"):
            self.failure = chunk["error"]
            return b"data: " + orjson.dumps({"error": chunk["error"]}) + b"\n\n"
        usage = self._usage(chunk)
        choices = _choices(chunk)
        options = self._request.stream_options
        if not choices:
            return self._sse({"choices": [], "usage": usage}) if usage and options.include_usage else b""
        extra: dict[str, Any] = {}
        if self._chat and choices[0].get("index", 0) not in self._opened:
            extra = self._prompt_ids()
        shaped = [self._part(choice) for choice in choices]
        if usage and options.include_usage and options.continuous_usage_stats:
            extra["usage"] = usage
        return self._sse({"choices": shaped} | extra)

    def _sse(self, fields: dict[str, Any]) -> bytes:
        kind = f"{self._kind}.chunk" if self._chat else self._kind
        return b"data: " + orjson.dumps(self._head | {"object": kind} | fields) + b"\n\n"

    def _whole_choice(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        if not self._chat:
            return self._beside(choice) | {"text": _text(choice)}
        text, calls = self._split(choice, ends=True)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            message["content"] = text or None
            message["tool_calls"] = [call.as_json() for call in calls]
        shaped = self._beside(choice) | {"message": message}
        return shaped | {"finish_reason": "tool_calls"} if calls else shaped

    def _part(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        if not self._chat:
            return self._beside(choice) | {"text": _text(choice)}
        ends = choice.get("finish_reason") is not None
        text, calls = self._split(choice, ends)
        index = choice.get("index", 0)
        delta: dict[str, Any] = {"content": text} if text or not ends else {}
        if index not in self._opened:
            delta = {"role": "assistant", "content": text}
            self._opened.add(index)
        if calls:
            delta["tool_calls"] = [{"index": n} | call.as_json() for n, call in enumerate(calls)]
        shaped = self._beside(choice) | {"delta": delta}
        return shaped | {"finish_reason": "tool_calls"} if calls else shaped

    def _split(self, choice: Mapping[str, Any], ends: bool) -> tuple[str, list[Call]]:
        text = _text(choice)
        if not may_call(self._request) or self._tool_format is None:
            return text, []
        assert isinstance(self._request, ChatRequest)
        splitter = self._splitters.get(choice.get("index", 0))
        if splitter is None:
            functions = {tool.function.name for tool in self._request.tools}
            splitter = CallSplitter(self._tool_format, functions, several=self._request.parallel_tool_calls)
            self._splitters[choice.get("index", 0)] = splitter
        text = splitter.push(text)
        if not ends:
            return text, []
        rest, calls = splitter.finish()
        return text + rest, calls

    def _beside(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        logprobs = choice.get("logprobs")
        beside: dict[str, Any] = {
            "index": choice.get("index", 0),
            "finish_reason": choice.get("finish_reason"),
            "logprobs": self._chat_logprobs(logprobs) if self._chat and isinstance(logprobs, dict) else logprobs,
        }
        if self._request.return_token_ids:
            beside["token_ids"] = choice.get("token_ids")
            if not self._chat and choice.get("prompt_token_ids") is not None:
                beside["prompt_token_ids"] = choice["prompt_token_ids"]
        return beside

    def _prompt_ids(self) -> dict[str, Any]:
        """Beside a chat's choices; a completion has them in each."""
        if not (self._chat and self._request.return_token_ids):
            return {}
        return {"prompt_token_ids": self._request.prompt_token_ids}

    def _chat_logprobs(self, logprobs: Mapping[str, Any]) -> dict[str, Any]:
        """From the completion's shape. The engines give texts of tokens there, so a token that is a part of a character
        has no bytes; and they put the sampled token among the likeliest, whether or not it is."""
        tokens = logprobs.get("tokens") or []
        values = logprobs.get("token_logprobs") or []
        tops = logprobs.get("top_logprobs") or [None] * len(tokens)
        content = []
        for token, value, top in zip(tokens, values, tops, strict=False):
            likeliest = sorted((top or {}).items(), key=lambda item: -item[1])[: self._request.num_logprobs]
            content.append(_logprob(token, value) | {"top_logprobs": [_logprob(*item) for item in likeliest]})
        return {"content": content}

    def _usage(self, answer: Mapping[str, Any]) -> dict[str, Any] | None:
        usage = answer.get("usage")
        if not isinstance(usage, dict):
            return None
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        shaped: dict[str, Any] = {name: usage.get(name) or 0 for name in names}
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        if isinstance(cached, int):
            self.cached_tokens = cached
            shaped["prompt_tokens_details"] = {"cached_tokens": cached}
        return shaped


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadAnswer("the engine's answer is no JSON") from error
    if not isinstance(value, dict):
        raise BadAnswer("the engine's answer is no JSON object")
    return value


def _choices(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise BadAnswer("the engine's answer has no choices")
    return choices


def _text(choice: Mapping[str, Any]) -> str:
    text = choice.get("text")
    return text if isinstance(text, str) else ""


def _logprob(token: str, value: float | None) -> dict[str, Any]:
    known = "\N{REPLACEMENT CHARACTER}" not in token
    return {"token": token, "logprob": value, "bytes": list(token.encode()) if known else None}
