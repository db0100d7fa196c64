"""Answers of /v1/chat/completions."""

from typing import Any

from replica.answer.choice import Choice, Part
from replica.answer.format import AnswerFormat
from replica.answer.logprobs import chat_logprobs


class ChatFormat(AnswerFormat):
    KIND = "chat.completion"
    CHUNK_KIND = "chat.completion.chunk"
    ID_PREFIX = "chatcmpl"
    BEFORE_TEXT = b'"delta":{"content":'
    AFTER_TEXT = b"}"

    def _delta(self, choice: Choice, part: Part) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        if not choice.opened:
            delta = {"role": "assistant", "content": part.text}
        elif part.text or part.tokens:
            delta = {"content": part.text}
        if part.calls:
            delta["tool_calls"] = [{"index": n} | call.as_json() for n, call in enumerate(part.calls)]
        return {"index": choice.index, "delta": delta}

    def _message(self, choice: Choice, part: Part) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": part.text}
        if part.calls:
            message["content"] = part.text or None
            message["tool_calls"] = [call.as_json() for call in part.calls]
        return {"index": choice.index, "message": message}

    def _logprobs(self, part: Part) -> dict[str, Any]:
        return chat_logprobs(part.tokens, self._names)

    def _prompt_ids(self, choice: Choice) -> dict[str, Any]:
        return {"prompt_token_ids": choice.sequence.prompt} if self._shown.token_ids else {}
