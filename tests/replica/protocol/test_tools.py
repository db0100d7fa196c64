import pytest

from replica.protocol.tools import ToolFormat, tool_format

LOOP = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "format"),
    [
        ("{{ messages }} <tool_call>", None),
        (LOOP, None),
        (LOOP + "<tool_call>", ToolFormat.HERMES),
        (LOOP + "<tool_call><function=", None),
        (LOOP + "[TOOL_CALLS]", ToolFormat.MISTRAL),
        (LOOP + "[TOOL_CALLS]{{ name }}[ARGS]", None),
        (LOOP + '{"name": function name, "parameters": dictionary', ToolFormat.LLAMA_JSON),
        ("{% set tools = 1 %}{{ tools }}<tool_call>", None),
        ("{% for broken", None),
        ("", None),
    ],
)
def test_the_format_is_told_from_the_template(template: str, format: ToolFormat | None) -> None:
    assert tool_format(template) is format
