import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from replica.protocol.messages import ChatMessage, Tool
from replica.protocol.text import ModelFolderError, ModelText, TemplateError

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  Höchste 山 12345 🗻\n\n"}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "<|im_end|> quoted"},
    ],
]


@pytest.mark.model
@pytest.mark.parametrize("messages", CHATS)
def test_chats_are_tokenised_as_transformers_does(
    model_folder: Path, model_text: ModelText, messages: list[dict[str, Any]]
) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(model_folder))
    rendered = model_text.render(messages)
    assert rendered == theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert model_text.encode_chat(rendered) == theirs(rendered, add_special_tokens=False)["input_ids"]


TOOL_TEMPLATE = (
    "{% if tools is defined and tools is not none %}{% for tool in tools %}{{ tool | tojson(indent=2) }}"
    "{{ tool.function | tojson(separators=(',', ':'), sort_keys=true) }}{% endfor %}{% endif %}"
    "{% for m in messages %}{{ m.role }}{{ m.content }}{% for call in m.tool_calls or [] %}"
    "<tool_call>{{ call.function.arguments | tojson }}</tool_call>{% endfor %}{{ m.tool_call_id }}{% endfor %}"
)


@pytest.mark.model
@pytest.mark.parametrize("with_tools", [True, False])
def test_tools_are_rendered_as_transformers_does(model_folder: Path, tmp_path: Path, with_tools: bool) -> None:
    from transformers import AutoTokenizer

    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model_folder / name, tmp_path / name)
    (tmp_path / "chat_template.jinja").write_text(TOOL_TEMPLATE)
    parameters = {"type": "object", "properties": {"zß": {"type": "string", "default": None}, "a": {"minimum": 1.5}}}
    function = {"name": "f", "description": "d <b>", "parameters": parameters}
    tools: list[Any] = (
        [Tool.model_validate({"type": "function", "function": function}).for_template()] if with_tools else []
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"zß": "é\\n", "a": 2.0}'}}
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "y"},
    ]
    messages = [ChatMessage.model_validate(turn).for_template() for turn in turns]
    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    expected = theirs.apply_chat_template(messages, tools=tools or None, tokenize=False, add_generation_prompt=True)
    assert ModelText.load(tmp_path).render(messages, tools) == expected


@pytest.mark.model
def test_limits_and_stops_of_the_default_model(model_text: ModelText) -> None:
    assert model_text.max_context == 8192
    assert model_text.vocab_size == 49152
    assert model_text.stop_token_ids == {2}
    assert "<|im_end|>" in model_text.special_tokens


def test_text_comes_back_through_the_tokenizer(tiny_folder: Path) -> None:
    text = ModelText.load(tiny_folder)
    for sample in ("plain", "  spaces ", "汉字 and 🙂", ""):
        assert text.decode(text.encode_plain(sample)) == sample


def test_fingerprints_tell_models_apart(tiny_folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(tiny_folder, tmp_path / "other")
    config = json.loads((other / "tokenizer_config.json").read_text())
    (other / "tokenizer_config.json").write_text(json.dumps({"chat_template": config["chat_template"] + " "}))
    here, there = ModelText.load(tiny_folder), ModelText.load(other)
    assert here.model_fingerprint == there.model_fingerprint
    assert here.tokenizer_fingerprint == there.tokenizer_fingerprint
    assert here.template_fingerprint != there.template_fingerprint


def test_a_template_file_takes_precedence(tiny_folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(tiny_folder, tmp_path / "other")
    (other / "chat_template.jinja").write_text("{{ raise_exception('no chats here') }}")
    with pytest.raises(TemplateError, match="no chats here"):
        ModelText.load(other).render(CHATS[0])


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_a_folder_without_a_file_is_refused_by_its_name(tiny_folder: Path, tmp_path: Path, missing: str) -> None:
    other = shutil.copytree(tiny_folder, tmp_path / "other")
    (other / missing).unlink()
    with pytest.raises(ModelFolderError, match=missing):
        ModelText.load(other)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", '{"model": 1}'),
        ("config.json", "[]"),
        ("config.json", "{}"),
        ("config.json", '{"vocab_size": "many"}'),
    ],
)
def test_a_broken_file_is_refused_by_its_name(tiny_folder: Path, tmp_path: Path, name: str, content: str) -> None:
    other = shutil.copytree(tiny_folder, tmp_path / "other")
    (other / name).write_text(content)
    with pytest.raises(ModelFolderError, match=name):
        ModelText.load(other)
