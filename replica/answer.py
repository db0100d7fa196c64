"""Answers in OpenAI's shapes, for chats and completions, whole or streamed."""

from dataclasses import dataclass
from typing import Any

import orjson

from replica.detokenizer import StopChecker, make_detokenizer
from replica.engine import Output
from replica.protocol.text import ModelText
from replica.sequence import FinishReason, Sequence

DONE_EVENT = b"data: [DONE]\n\n"


class AnswerText:
    """The text of one answer as its tokens come in, cut at stop strings."""

    def __init__(self, text: ModelText, stops: list[str], min_tokens: int) -> None:
        self._detokenizer = make_detokenizer(text.tokenizer)
        self._stops = StopChecker(stops)
        self._min_tokens = min_tokens
        self.finish_reason: FinishReason | None = None
        self.num_tokens = 0

    def push(self, outputs: list[Output]) -> str:
        """The text that may go out now. Tokens after the end are left out."""
        text = ""
        for output in outputs:
            if self.finish_reason is not None:
                break
            self.num_tokens += 1
            piece = self._detokenizer.push(output.token)
            text += piece if self.num_tokens < self._min_tokens else self._stops.push(piece)
            if self._stops.stopped:
                self.finish_reason = FinishReason.STOP
            elif output.finish_reason is not None:
                self.finish_reason = output.finish_reason
                text += self._stops.push(self._detokenizer.flush()) + self._stops.flush()
        return text


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """Renders one request's answer; `chat` decides the shape."""

    chat: bool
    request_id: str
    model: str
    created: int
    include_usage: bool

    def whole(self, text: str, reason: FinishReason, usage: dict[str, Any]) -> bytes:
        if self.chat:
            choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": text}}
        else:
            choice = {"index": 0, "text": text}
        choice |= {"logprobs": None, "finish_reason": reason}
        kind = "chat.completion" if self.chat else "text_completion"
        return orjson.dumps(self._head(kind) | {"choices": [choice], "usage": usage})

    def chunk(self, text: str, first: bool) -> bytes:
        if not self.chat:
            return self._event({"index": 0, "text": text, "logprobs": None, "finish_reason": None})
        delta = {"role": "assistant", "content": text} if first else {"content": text}
        return self._event({"index": 0, "delta": delta, "logprobs": None, "finish_reason": None})

    def last_chunks(self, reason: FinishReason, usage: dict[str, Any], first: bool) -> bytes:
        """The finish reason, the usage if asked for, and the end of the stream."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason}
        if self.chat:
            choice["delta"] = {"role": "assistant", "content": ""} if first else {}
        else:
            choice["text"] = ""
        events = self._event(choice)
        if self.include_usage:
            events += _sse(self._head(self._chunk_kind) | {"choices": [], "usage": usage})
        return events + DONE_EVENT

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _event(self, choice: dict[str, Any]) -> bytes:
        return _sse(self._head(self._chunk_kind) | {"choices": [choice]})

    def _head(self, kind: str) -> dict[str, Any]:
        prefix = "chatcmpl" if self.chat else "cmpl"
        return {"id": f"{prefix}-{self.request_id}", "object": kind, "created": self.created, "model": self.model}


def usage_of(sequence: Sequence, output_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": len(sequence.prompt),
        "completion_tokens": output_tokens,
        "total_tokens": len(sequence.prompt) + output_tokens,
        "prompt_tokens_details": {"cached_tokens": sequence.num_cached},
    }


def _sse(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
