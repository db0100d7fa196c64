"""Tool calls out of an answer's text. Text before them flows; they are held until the answer's end and parsed then."""

import json
import secrets
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Any

import orjson

from replica.detokenizer import overlap
from replica.protocol.tools import ToolFormat


@dataclass(frozen=True, slots=True)
class Call:
    id: str
    name: str
    arguments: str
    """JSON text of an object."""

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


_Item = tuple[str, dict[str, Any] | None]
"""Text, and the object that it stands for if it may be a call."""


@dataclass(frozen=True, slots=True)
class _Syntax:
    markers: tuple[str, ...]
    """With one of these a call begins."""
    only_at_start: bool
    """Nothing but calls is in such an answer."""
    parse: Callable[[str], Iterator[_Item]]
    new_id: Callable[[], str]


class CallSplitter:
    """Of one answer. What isn't a call of a known function stays text."""

    def __init__(self, format: ToolFormat, functions: Set[str], several: bool = True) -> None:
        """Without `several` only the first call counts; the others are dropped."""
        self._several = several
        self._syntax = _SYNTAXES[format]
        self._functions = functions
        self._text = ""
        self._held: list[str] = []
        self._started = False

    def push(self, text: str) -> str:
        """What is certainly no part of a call."""
        if self._held:
            self._held.append(text)
            return ""
        text = self._text + text
        begin = self._begin(text)
        self._text = "" if begin is not None else text[self._safe(text) :]
        out = text[:begin] if begin is not None else text[: len(text) - len(self._text)]
        if begin is not None:
            self._held = [text[begin:]]
            # White space alone before a call is no content.
            return out if self._started or out.strip() else ""
        self._started = self._started or bool(out)
        return out

    def finish(self) -> tuple[str, list[Call]]:
        """What is left as text, and the calls."""
        if not self._held:
            return self._text, []
        content, calls = [], []
        for text, value in self._syntax.parse("".join(self._held)):
            call = None if value is None else _call(value, self._functions, self._syntax.new_id)
            if call is None:
                content.append(text)
            else:
                calls.append(call)
        rest = "".join(content)
        return (rest if rest.strip() or not calls else ""), calls if self._several else calls[:1]

    def _begin(self, text: str) -> int | None:
        if self._syntax.only_at_start:
            start = len(text) - len(text.lstrip())
            found = [start] if not self._started and text.startswith(self._syntax.markers, start) else []
        else:
            found = [at for marker in self._syntax.markers if (at := text.find(marker)) >= 0]
        return min(found, default=None)

    def _safe(self, text: str) -> int:
        """Characters that no marker can begin within."""
        if not self._started and not text.strip():
            return 0
        if not self._syntax.only_at_start:
            keep = max(overlap(text, marker) for marker in self._syntax.markers)
            safe = len(text) - keep
            return safe if self._started or text[:safe].strip() else 0
        starts = not self._started and any(marker.startswith(text.lstrip()) for marker in self._syntax.markers)
        return 0 if starts else len(text)


def _call(value: dict[str, Any], functions: Set[str], new_id: Callable[[], str]) -> Call | None:
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters", {}))
    if not isinstance(name, str) or name not in functions:
        return None
    if isinstance(arguments, str):
        # Some models write the object as a string.
        arguments = _loads(arguments)
    if not isinstance(arguments, dict):
        return None
    return Call(new_id(), name, orjson.dumps(arguments).decode())


def _loads(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _hermes(text: str) -> Iterator[_Item]:
    begin, end = "<tool_call>", "</tool_call>"
    while begin in text:
        before, _, rest = text.partition(begin)
        yield before, None
        body, closed, text = rest.partition(end)
        value = _loads(body)
        # A model may leave out the last tag: its end-of-answer token stands for it.
        yield begin + body + closed, value if isinstance(value, dict) and (closed or not text) else None
    yield text, None


def _mistral(text: str) -> Iterator[_Item]:
    body = text.removeprefix("[TOOL_CALLS]").lstrip()
    values, end = _leading_json(body)
    if isinstance(values, list) and values and all(isinstance(value, dict) for value in values):
        for value in values:
            yield json.dumps(value, ensure_ascii=False), value
        yield body[end:], None
    else:
        yield text, None


def _llama_json(text: str) -> Iterator[_Item]:
    """One object, or several with semicolons between them."""
    body = text.strip().removeprefix("<|python_tag|>").strip()
    while body:
        value, end = _leading_json(body)
        if not isinstance(value, dict):
            yield body, None
            return
        yield body[:end], value
        body = body[end:].lstrip("; \n")


def _leading_json(text: str) -> tuple[Any, int]:
    """The value that a text begins with, and where it ends."""
    try:
        return json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None, 0


_SYNTAXES = {
    ToolFormat.HERMES: _Syntax(("<tool_call>",), False, _hermes, lambda: f"call_{secrets.token_hex(12)}"),
    # Its template refuses ids of any other length.
    ToolFormat.MISTRAL: _Syntax(("[TOOL_CALLS]",), False, _mistral, lambda: secrets.token_hex(5)[:9]),
    ToolFormat.LLAMA_JSON: _Syntax(("{", "<|python_tag|>"), True, _llama_json, lambda: f"call_{secrets.token_hex(12)}"),
}
