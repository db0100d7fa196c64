"""What a request says its answer must look like, as a grammar."""

from typing import Any

import orjson

from replica.grammar import GrammarSpec
from replica.protocol.messages import Function, NamedTool
from replica.protocol.openai import ChatRequest, GenerateRequest
from replica.protocol.text import ModelText
from replica.protocol.tools import ToolFormat

_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Of calls: as Python writes JSON, which is what models have learnt, and no room to fill with white space."""

_ARGUMENTS = {ToolFormat.HERMES: "arguments", ToolFormat.MISTRAL: "arguments", ToolFormat.LLAMA_JSON: "parameters"}


def constraint_of(request: GenerateRequest, text: ModelText) -> tuple[GrammarSpec, str] | None:
    """The grammar, and the field that it comes from."""
    if isinstance(request, ChatRequest) and request.must_call:
        assert text.tool_format is not None
        return GrammarSpec("grammar", _calls_grammar(request, text, text.tool_format)), "tools"
    if request.regex is not None:
        return GrammarSpec("regex", request.regex), "regex"
    if request.grammar is not None:
        return GrammarSpec("grammar", request.grammar), "grammar"
    form = request.response_format
    if form.type == "text":
        return None
    schema = form.json_schema.schema_ if form.json_schema else None
    if schema is None:
        return GrammarSpec("json_object", ""), "response_format"
    return GrammarSpec("json_schema", orjson.dumps(schema).decode()), "response_format.json_schema.schema"


def _calls_grammar(request: ChatRequest, text: ModelText, format: ToolFormat) -> str:
    """In Lark's syntax, with schemas inline."""
    functions = [tool.function for tool in request.tools]
    several = request.parallel_tool_calls
    if isinstance(request.tool_choice, NamedTool):
        functions = [function for function in functions if function.name == request.tool_choice.function.name]
        several = False
    calls = [_call_schema(function, _ARGUMENTS[format]) for function in functions]
    schema: dict[str, Any] = {"x-guidance": _JSON_STYLE, "anyOf": calls}
    rules = {
        ToolFormat.HERMES: [
            'start: call ("\\n" call)*' if several else "start: call",
            f'call: {_literal("<tool_call>", text)} "\\n" body "\\n" {_literal("</tool_call>", text)}',
        ],
        ToolFormat.MISTRAL: [
            f'start: {_literal("[TOOL_CALLS]", text)} "["' + (' body (", " body)* "]"' if several else ' body "]"'),
        ],
        # The template of this format allows one call.
        ToolFormat.LLAMA_JSON: ["start: body"],
    }
    return "\n".join([*rules[format], f"body: %json {orjson.dumps(schema).decode()}"])


def _call_schema(function: Function, arguments: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, arguments: function.schema_of_arguments},
        "required": ["name", arguments],
        "additionalProperties": False,
    }


def _literal(marker: str, text: ModelText) -> str:
    """A special token is named by its id: as text no grammar lets it through."""
    token = text.tokenizer.token_to_id(marker) if marker in text.special_tokens else None
    return f'"{marker}"' if token is None else f"<[{token}]>"
