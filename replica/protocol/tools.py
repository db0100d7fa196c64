"""How models write tool calls, told from their chat templates."""

from enum import StrEnum

import jinja2
from jinja2 import meta
from jinja2.ext import loopcontrols


class ToolFormat(StrEnum):
    HERMES = "hermes"
    """`<tool_call>{"name": …, "arguments": …}</tool_call>`, also Qwen's."""

    MISTRAL = "mistral"
    """`[TOOL_CALLS] [{"name": …, "arguments": …}, …]`"""

    LLAMA_JSON = "llama_json"
    """`{"name": …, "parameters": …}` as the whole answer: Llama 3.1 to 3.3."""


def tool_format(template: str) -> ToolFormat | None:
    """None where the template uses no tools, or shows a format that isn't in the list."""
    if not _uses_tools(template):
        return None
    # Qwen3-Coder and others write XML within the same tags; Mistral's newer templates put [ARGS] after a bare name.
    if "<tool_call>" in template and "<function=" not in template and "<arg_key>" not in template:
        return ToolFormat.HERMES
    if "[TOOL_CALLS]" in template and "[ARGS]" not in template:
        return ToolFormat.MISTRAL
    if '{"name": function name, "parameters":' in template:
        return ToolFormat.LLAMA_JSON
    return None


def _uses_tools(template: str) -> bool:
    try:
        tree = jinja2.Environment(extensions=[loopcontrols]).parse(template)
    except jinja2.TemplateSyntaxError:
        return False
    return "tools" in meta.find_undeclared_variables(tree)
