import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from replica.constraints import constraint_of
from replica.grammar import GrammarCompiler, GrammarSpec
from replica.protocol.openai import ChatRequest, CompletionRequest
from replica.protocol.text import ModelText
from replica.sequence import TokenConstraint
from tests.tool_model import TIME, WEATHER

MESSAGES = [{"role": "user", "content": "x"}]
TEMPLATES = {
    "hermes": "{{ tools }}<tool_call>",
    "mistral": "{{ tools }}[TOOL_CALLS]",
    "llama_json": '{{ tools }}{"name": function name, "parameters":',
}
MARKERS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]")


def text_of(tiny_folder: Path, folder: Path, format: str, special: bool) -> ModelText:
    shutil.copytree(tiny_folder, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATES[format])
    if special:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in MARKERS])
        tokenizer.save(str(folder / "tokenizer.json"))
    return ModelText.load(folder)


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"model": "m", "messages": MESSAGES} | fields)


def follows(constraint: TokenConstraint, tokens: list[int], stop: int) -> bool:
    """Whether the grammar takes these tokens and may end after them."""
    for token in tokens:
        mask = constraint.bitmask()
        if constraint.is_finished or not mask[token // 8] >> token % 8 & 1:
            return False
        constraint.accept(token)
    return constraint.is_finished or bool(constraint.bitmask()[stop // 8] >> stop % 8 & 1)


OSLO = '{"name": "weather", "%s": {"city": "Oslo"}}'
NOW = '{"name": "time", "%s": {}}'


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(
    ("format", "answer", "one", "several", "named"),
    [
        ("hermes", f"<tool_call>\n{OSLO % 'arguments'}\n</tool_call>", True, True, True),
        ("hermes", f"<tool_call>\n{NOW % 'arguments'}\n</tool_call>", True, True, False),
        ("hermes", f"<tool_call>\n{NOW % 'arguments'}\n</tool_call>\n" * 2, False, False, False),
        ("hermes", "\n".join([f"<tool_call>\n{NOW % 'arguments'}\n</tool_call>"] * 2), False, True, False),
        ("hermes", "<tool_call>\n{}\n</tool_call>", False, False, False),
        ("hermes", OSLO % "arguments", False, False, False),
        ("hermes", f"<tool_call>\n{OSLO % 'arguments'}\n</tool_call>".replace("Oslo", "Rome"), False, False, False),
        ("mistral", f"[TOOL_CALLS][{OSLO % 'arguments'}]", True, True, True),
        ("mistral", f"[TOOL_CALLS][{NOW % 'arguments'}, {OSLO % 'arguments'}]", False, True, False),
        ("mistral", "[TOOL_CALLS][]", False, False, False),
        ("llama_json", OSLO % "parameters", True, True, True),
        ("llama_json", OSLO % "arguments", False, False, False),
    ],
)
def test_calls_that_must_come(
    tiny_folder: Path, tmp_path: Path, format: str, answer: str, one: bool, several: bool, named: bool, special: bool
) -> None:
    text = text_of(tiny_folder, tmp_path / "model", format, special)
    tokens = text.encode_chat(answer)
    compiler = GrammarCompiler(text)
    tools = [WEATHER, TIME]
    named_choice = {"type": "function", "function": {"name": "weather"}}
    for fields, expected in (
        ({"tool_choice": "required", "parallel_tool_calls": False}, one),
        ({"tool_choice": "required"}, several),
        ({"tool_choice": named_choice}, named),
    ):
        found = constraint_of(chat(tools=tools, **fields), text)
        assert found is not None and found[1] == "tools"
        assert follows(compiler.compile(found[0]), tokens, stop=1) is expected, fields


@pytest.mark.parametrize(
    ("fields", "spec", "param"),
    [
        ({"regex": "a+"}, GrammarSpec("regex", "a+"), "regex"),
        ({"grammar": "start: x"}, GrammarSpec("grammar", "start: x"), "grammar"),
        ({"response_format": {"type": "json_object"}}, GrammarSpec("json_object", ""), "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"b": 1, "a": None}}}},
            GrammarSpec("json_schema", '{"b":1,"a":null}'),
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s"}}},
            GrammarSpec("json_object", ""),
            "response_format",
        ),
    ],
)
def test_what_requests_ask_for(tiny_text: ModelText, fields: dict[str, Any], spec: GrammarSpec, param: str) -> None:
    request = CompletionRequest.model_validate({"model": "m", "prompt": "x"} | fields)
    assert constraint_of(request, tiny_text) == (spec, param)


def test_most_ask_for_nothing(tiny_text: ModelText) -> None:
    for fields in ({}, {"response_format": {"type": "text"}}, {"tools": [TIME]}):
        assert constraint_of(chat(**fields), tiny_text) is None
