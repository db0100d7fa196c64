"""Answers of several prompts as the one that a replica alone would give. Pure: bytes in, bytes out.

A choice's index is its prompt's number times the choices of each, plus its own; usage is summed; id, time and model are
those of whichever answer was first.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from gateway.events import DONE
from replica.protocol import headers

_WORDS = (headers.REPLICA, headers.POLICY, headers.REASON)
_HEAD = ("id", "created", "model")


class NoAnswer(ValueError):
    """What came isn't an answer that can be put together with others."""


def merged(bodies: Sequence[bytes], choices: int, rename: Callable[[str], str]) -> bytes:
    """Of whole answers, by prompt. `choices`: of each prompt; `rename`: an answer's id to the one of all. Raises
    NoAnswer."""
    answers = [_answer(body) for body in bodies]
    whole = {**answers[0], "id": rename(str(answers[0].get("id", "")))}
    whole["choices"] = [
        _moved(choice, number * choices) for number, answer in enumerate(answers) for choice in answer["choices"]
    ]
    usages = [answer["usage"] for answer in answers if answer.get("usage") is not None]
    if usages:
        whole["usage"] = summed(usages)
    return orjson.dumps(whole)


def _answer(body: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise NoAnswer("an answer is no JSON") from error
    if not isinstance(answer, dict) or not isinstance(answer.get("choices"), list):
        raise NoAnswer("an answer has no choices")
    if not all(isinstance(choice, dict) for choice in answer["choices"]):
        raise NoAnswer("a choice is no object")
    return answer


def _moved(choice: dict[str, Any], by: int) -> dict[str, Any]:
    index = choice.get("index", 0)
    return {**choice, "index": by + (index if isinstance(index, int) else 0)}


def summed(values: Sequence[Any]) -> Any:
    """Numbers are added up, objects by name; of anything else the first counts."""
    if all(isinstance(value, dict) for value in values):
        names = dict.fromkeys(name for value in values for name in value)
        return {name: summed([value[name] for value in values if name in value]) for name in names}
    numbers = [value for value in values if isinstance(value, int | float)]
    return sum(numbers) if numbers else values[0]


def merged_headers(given: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What `x-ryokan-…` says of each: words are listed, tokens added up, and of predicted waits the longest counts.
    What the caches gave is told where all have told it."""

    def values(name: str) -> list[str]:
        return [each[name] for each in given if name in each]

    found = {name: ", ".join(dict.fromkeys(values(name))) for name in _WORDS if values(name)}
    if cached := values(headers.CACHED_TOKENS):
        found[headers.CACHED_TOKENS] = str(sum(map(int, cached)))
    if predicted := values(headers.PREDICTED_TTFT):
        found[headers.PREDICTED_TTFT] = max(predicted, key=float)
    # Replicas' own word, passed on as it came.
    delivered = [raw for raw in values(headers.DELIVERED_TOKENS) if raw.isascii() and raw.isdigit() and len(raw) < 10]
    if len(delivered) == len(given):
        found[headers.DELIVERED_TOKENS] = str(sum(map(int, delivered)))
    return found


class StreamMerger:
    """Events of several streams as those of one."""

    def __init__(self, prompts: int, choices: int, rename: Callable[[str], str]) -> None:
        self._choices = choices
        self._rename = rename
        self._held = [b""] * prompts
        self._usages: list[Any] = [_unanswered(0)] * prompts
        self._head: dict[str, Any] = {}
        self._usage_event: dict[str, Any] | None = None
        self.broken = False
        """An error event has been let through, and is the last."""

    def expect(self, prompt: int, tokens: int) -> None:
        """So long it is: what usage within chunks says of a prompt whose answer has told none yet."""
        self._usages[prompt] = _unanswered(tokens)

    def feed(self, prompt: int, data: bytes) -> bytes:
        """What goes to the client of this. No comment does, and no `[DONE]`."""
        data = self._held[prompt] + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *events, self._held[prompt] = data.split(b"\n\n")
        return b"".join([self._event(prompt, event) for event in events])

    def end(self) -> bytes:
        """After all have ended."""
        if self.broken:
            return b""
        event = b""
        if self._usage_event is not None:
            event = _sse({**self._usage_event, **self._head, "usage": summed(self._usages)})
        return event + DONE

    def break_off(self, error: bytes) -> bytes:
        """An error ends it; the error of another prompt may have done so before."""
        if self.broken:
            return b""
        self.broken = True
        return b"data: " + error + b"\n\n" + DONE

    def _event(self, prompt: int, event: bytes) -> bytes:
        lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
        if not lines or lines == [b"[DONE]"] or self.broken:
            return b""
        try:
            chunk = orjson.loads(b"\n".join(lines))
        except orjson.JSONDecodeError:
            # The beginning of an event whose replica broke off in it.
            return b""
        if not isinstance(chunk, dict) or not isinstance(chunk.get("choices"), list):
            return self.break_off(b"\n".join(lines))
        return self._chunk(prompt, chunk)

    def _chunk(self, prompt: int, chunk: dict[str, Any]) -> bytes:
        if not self._head:
            self._head = {name: chunk[name] for name in _HEAD if name in chunk}
            self._head["id"] = self._rename(str(chunk.get("id", "")))
        told = chunk.get("usage")
        if told is not None:
            self._usages[prompt] = told
        if not chunk["choices"]:
            if told is not None:
                self._usage_event = self._usage_event or chunk
            return b""
        chunk = {**chunk, **self._head}
        chunk["choices"] = [_moved(choice, prompt * self._choices) for choice in chunk["choices"]]
        if told is not None:
            chunk["usage"] = summed(self._usages)
        return _sse(chunk)


def _unanswered(prompt_tokens: int) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": 0, "total_tokens": prompt_tokens}
    return {**counts, "prompt_tokens_details": {"cached_tokens": 0}}


def _sse(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
