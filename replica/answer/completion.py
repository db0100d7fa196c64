"""Answers of /v1/completions."""

from typing import Any

from replica.answer.choice import Choice, Part
from replica.answer.format import AnswerFormat
from replica.answer.logprobs import completion_logprobs


class CompletionFormat(AnswerFormat):
    KIND = "text_completion"
    CHUNK_KIND = "text_completion"
    ID_PREFIX = "cmpl"
    BEFORE_TEXT = b'"text":'
    AFTER_TEXT = b""

    def _delta(self, choice: Choice, part: Part) -> dict[str, Any]:
        return self._message(choice, part)

    def _message(self, choice: Choice, part: Part) -> dict[str, Any]:
        ids = {}
        if self._shown.token_ids and not choice.opened:
            ids = {"prompt_token_ids": choice.sequence.prompt}
        return {"index": choice.index, "text": part.text} | ids

    def _logprobs(self, part: Part) -> dict[str, Any]:
        return completion_logprobs(part.tokens, self._names)
