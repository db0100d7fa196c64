import json
import shutil
from pathlib import Path
from typing import Any

import pytest

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
    assert here.tokenizer_fingerprint != there.tokenizer_fingerprint


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
