"""The tiny model with a chat template that knows tools, in Hermes' and Qwen's format."""

import shutil
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% if tools %}<|start|>system\n{% for tool in tools %}{{ tool.function | tojson }}\n{% endfor %}"
    "Call: <tool_call>{name,arguments}</tool_call><|end|>\n{% endif %}"
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|end|>\n{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Kyoto", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "time"}}


def write_tool_model(tiny_folder: Path, folder: Path) -> Path:
    shutil.copytree(tiny_folder, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder
