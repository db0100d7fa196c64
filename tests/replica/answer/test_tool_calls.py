"""Calls parsed out of texts, in each format, cut at every place."""

import json
import random
from typing import Any

import pytest

from replica.answer.tool_calls import CallSplitter
from replica.protocol.tools import ToolFormat

HERMES, MISTRAL, LLAMA = ToolFormat.HERMES, ToolFormat.MISTRAL, ToolFormat.LLAMA_JSON
WEATHER = '{"name": "weather", "arguments": {"city": "Kyōto", "days": 2}}'
TIME = '{"name": "time", "arguments": {}}'
ARGUMENTS = {"city": "Kyōto", "days": 2}

Parsed = tuple[str, list[tuple[str, Any]]]

CASES: list[tuple[ToolFormat, str, Parsed | None]] = [
    (HERMES, "plain <text> with <tool", ("plain <text> with <tool", [])),
    (HERMES, "", ("", [])),
    (HERMES, "  \n", ("  \n", [])),
    (HERMES, f"<tool_call>\n{WEATHER}\n</tool_call>", ("", [("weather", ARGUMENTS)])),
    (HERMES, f"\n\n<tool_call>{WEATHER}</tool_call>\n", ("", [("weather", ARGUMENTS)])),
    (HERMES, f"Let me look.\n<tool_call>{WEATHER}</tool_call>", ("Let me look.\n", [("weather", ARGUMENTS)])),
    (
        HERMES,
        f"<tool_call>{WEATHER}</tool_call>\n<tool_call>{TIME}</tool_call>",
        ("", [("weather", ARGUMENTS), ("time", {})]),
    ),
    (HERMES, f"<tool_call>{WEATHER}</tool_call> and so on", (" and so on", [("weather", ARGUMENTS)])),
    (HERMES, f"<tool_call>{WEATHER}", ("", [("weather", ARGUMENTS)])),
    (HERMES, "<tool_call>{'name'", ("<tool_call>{'name'", [])),
    (HERMES, "a <tool_call>[1]</tool_call> b", ("a <tool_call>[1]</tool_call> b", [])),
    (HERMES, '<tool_call>{"name": "rm", "arguments": {}}</tool_call>', None),
    (HERMES, '<tool_call>{"name": "time", "arguments": [1]}</tool_call>', None),
    (HERMES, '<tool_call>{"arguments": {}}</tool_call>', None),
    (HERMES, '<tool_call>{"name": "time", "arguments": "{}"}</tool_call>', ("", [("time", {})])),
    (HERMES, '<tool_call>{"name": "time"}</tool_call>', ("", [("time", {})])),
    (
        HERMES,
        f"<tool_call>oops</tool_call><tool_call>{TIME}</tool_call>",
        ("<tool_call>oops</tool_call>", [("time", {})]),
    ),
    (MISTRAL, f"[TOOL_CALLS] [{WEATHER}, {TIME}]", ("", [("weather", ARGUMENTS), ("time", {})])),
    (MISTRAL, f"[TOOL_CALLS][{TIME}]", ("", [("time", {})])),
    (MISTRAL, "[TOOL_CALLS] [oops", None),
    (MISTRAL, "[TOOL_CALLS] []", None),
    (MISTRAL, "see [1] and [TOOL", None),
    (LLAMA, '{"name": "time", "parameters": {}}', ("", [("time", {})])),
    (LLAMA, '\n\n{"name": "time", "parameters": {}}', ("", [("time", {})])),
    (LLAMA, '<|python_tag|>{"name": "time", "parameters": {}}', ("", [("time", {})])),
    (
        LLAMA,
        '{"name": "time", "parameters": {}}; {"name": "weather", "parameters": {"city": "Oslo"}}',
        ("", [("time", {}), ("weather", {"city": "Oslo"})]),
    ),
    (LLAMA, '{"answer": 3}', None),
    (LLAMA, '{"name": "time", "parame', None),
    (LLAMA, 'Use {"name": "time", "parameters": {}}', None),
    (LLAMA, "<|python", None),
]


def split(format: ToolFormat, pieces: list[str]) -> tuple[str, str, list[tuple[str, Any]]]:
    """Text that flowed, text that came at the end, calls."""
    splitter = CallSplitter(format, {"weather", "time"})
    flowed = "".join(splitter.push(piece) for piece in pieces)
    rest, calls = splitter.finish()
    return flowed, rest, [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize(("format", "text", "expected"), CASES)
def test_calls_and_text_wherever_the_text_is_cut(format: ToolFormat, text: str, expected: Parsed | None) -> None:
    wanted = (text, []) if expected is None else expected
    for cuts in [[at] for at in range(len(text) + 1)] + [list(range(len(text)))]:
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        flowed, rest, calls = split(format, pieces)
        assert (flowed + rest, calls) == wanted


def test_of_several_calls_one_counts_where_only_one_may_come() -> None:
    splitter = CallSplitter(HERMES, {"time", "weather"}, several=False)
    splitter.push(f"<tool_call>{TIME}</tool_call>\n<tool_call>{WEATHER}</tool_call>")
    rest, calls = splitter.finish()
    assert (rest, [call.name for call in calls]) == ("", ["time"])


def test_text_before_a_call_flows() -> None:
    assert split(HERMES, ["Let me", " see. <tool", "_call>", TIME]) == ("Let me see. ", "", [("time", {})])


def test_what_only_looked_like_a_call_flows_on() -> None:
    splitter = CallSplitter(HERMES, {"time"})
    assert [splitter.push(piece) for piece in ("a<tool", "_", "box>", "b")] == ["a", "", "<tool_box>", "b"]
    splitter = CallSplitter(LLAMA, {"time"})
    assert [splitter.push(piece) for piece in ("<|py", "thon is nice {", "b")] == ["", "<|python is nice {", "b"]


def test_ids_are_as_the_format_s_template_wants_them() -> None:
    def ids(format: ToolFormat, text: str) -> list[str]:
        splitter = CallSplitter(format, {"time"})
        splitter.push(text)
        return [call.id for call in splitter.finish()[1]]

    hermes = ids(HERMES, f"<tool_call>{TIME}</tool_call>" * 2)
    assert len(set(hermes)) == 2 and all(identity.startswith("call_") for identity in hermes)
    assert all(len(identity) == 9 and identity.isalnum() for identity in ids(MISTRAL, f"[TOOL_CALLS][{TIME}]"))


def test_random_cuts_change_nothing(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        parts = rng.choices(["<tool_call>", "</tool_call>", TIME, WEATHER, "x", " ", "<", "{", "\n"], k=8)
        text = "".join(parts)
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(8)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        flowed, rest, calls = split(HERMES, pieces)
        whole_flowed, whole_rest, whole_calls = split(HERMES, [text])
        assert (flowed + rest, calls) == (whole_flowed + whole_rest, whole_calls), text
