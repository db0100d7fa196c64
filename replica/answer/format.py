"""Answers in OpenAI's shapes: what chats and completions have in common. One object an answer."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import orjson

from replica.answer.choice import Choice, Part
from replica.answer.usage import usage_of
from replica.protocol.resume import USAGE_MARK, mark
from replica.token_bytes import TokenBytes

DONE_EVENT = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Shown:
    """What a request wants to see beside the text."""

    n: int = 1
    logprobs: bool = False
    token_ids: bool = False
    usage: bool = False
    """At a stream's end."""
    usage_in_chunks: bool = False
    marks: bool = False
    """Before each event of a stream, which tokens it stands for; see protocol/resume.py."""

    @property
    def text_alone(self) -> bool:
        return not (self.logprobs or self.token_ids or self.usage_in_chunks)


class AnswerFormat(ABC):
    KIND: ClassVar[str]
    CHUNK_KIND: ClassVar[str]
    ID_PREFIX: ClassVar[str]
    BEFORE_TEXT: ClassVar[bytes]
    AFTER_TEXT: ClassVar[bytes]

    def __init__(self, request_id: str, model: str, created: int, shown: Shown, names: TokenBytes) -> None:
        self._head = {"id": f"{self.ID_PREFIX}-{request_id}", "created": created, "model": model}
        self._shown = shown
        self._names = names
        # A chunk of text alone is what most of a stream is made of: all but the text is rendered once.
        chunk_head = orjson.dumps(self._head | {"object": self.CHUNK_KIND})[:-1]
        self._before_index = b"data: " + chunk_head + b',"choices":[{"index":'
        self._after_index = b"," + self.BEFORE_TEXT
        self._after_text = self.AFTER_TEXT + b',"logprobs":null,"finish_reason":null}]}\n\n'

    def chunk(self, choice: Choice, part: Part, all_choices: Sequence[Choice]) -> bytes:
        """Everything of a part; nothing where that is nothing."""
        events = b""
        if part.text or part.tokens or part.token_ids or part.calls:
            if choice.opened and self._shown.text_alone and not part.calls:
                index = str(choice.index).encode()
                text = orjson.dumps(part.text)
                events = self._before_index + index + self._after_index + text + self._after_text
            else:
                events = self._event(choice, self._delta(choice, part), part, None, all_choices)
            choice.opened = True
            if self._shown.marks:
                events = mark(choice.index, choice.take_ids(), ends=False) + events
        if choice.finish_reason is not None:
            last = Part("", [], [])
            if self._shown.marks:
                events += mark(choice.index, choice.take_ids(), ends=True)
            events += self._event(choice, self._delta(choice, last), last, choice.reason_given, all_choices)
            choice.opened = choice.closed = True
        return events

    def end(self, choices: Sequence[Choice]) -> bytes:
        """After all choices' last chunks."""
        if not self._shown.usage:
            return DONE_EVENT
        usage = {"choices": [], "usage": usage_of(choices, self._shown.n)}
        event = _sse(self._head | {"object": self.CHUNK_KIND} | usage)
        return (USAGE_MARK if self._shown.marks else b"") + event + DONE_EVENT

    def whole(self, choices: Sequence[Choice], parts: Sequence[Part]) -> bytes:
        body = self._head | {
            "object": self.KIND,
            "choices": [
                self._message(choice, part) | self._beside(part, choice) | {"finish_reason": choice.reason_given}
                for choice, part in zip(choices, parts, strict=True)
            ],
            "usage": usage_of(choices, self._shown.n),
        }
        return orjson.dumps(body | self._prompt_ids(choices[0]))

    def _event(
        self, choice: Choice, delta: dict[str, Any], part: Part, reason: str | None, all_choices: Sequence[Choice]
    ) -> bytes:
        item = delta | self._beside(part, choice) | {"finish_reason": reason}
        body = self._head | {"object": self.CHUNK_KIND, "choices": [item]}
        if not choice.opened:
            body |= self._prompt_ids(choice)
        if self._shown.usage_in_chunks:
            body["usage"] = usage_of(all_choices, self._shown.n)
        return _sse(body)

    def _beside(self, part: Part, choice: Choice) -> dict[str, Any]:
        beside: dict[str, Any] = {"logprobs": None}
        if self._shown.logprobs and (part.tokens or not choice.opened):
            beside["logprobs"] = self._logprobs(part)
        if self._shown.token_ids:
            beside["token_ids"] = part.token_ids
        return beside

    @abstractmethod
    def _delta(self, choice: Choice, part: Part) -> dict[str, Any]: ...

    @abstractmethod
    def _message(self, choice: Choice, part: Part) -> dict[str, Any]: ...

    @abstractmethod
    def _logprobs(self, part: Part) -> dict[str, Any]: ...

    def _prompt_ids(self, choice: Choice) -> dict[str, Any]:
        return {}


def _sse(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
