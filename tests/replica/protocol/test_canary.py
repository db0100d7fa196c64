import json
import shutil
from pathlib import Path

import pytest

from replica.protocol.canary import fingerprints
from replica.protocol.text import ModelText


def with_template(folder: Path, to: Path, template: str) -> ModelText:
    shutil.copytree(folder, to)
    (to / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return ModelText.load(to)


def test_two_loads_agree(tiny_folder: Path) -> None:
    here, there = (fingerprints(ModelText.load(tiny_folder, name)) for name in ("one", "another"))
    assert here == there
    assert here["canary_plain"] != here["canary_chat"]


def test_one_token_that_differs_is_seen(tiny_text: ModelText) -> None:
    def changed(position: int) -> str:
        def encode(rendered: str) -> list[int]:
            tokens = tiny_text.encode_chat(rendered)
            tokens[position] ^= 1
            return tokens

        return fingerprints(tiny_text, encode)["canary_chat"]

    same = fingerprints(tiny_text)
    assert fingerprints(tiny_text, tiny_text.encode_chat) == same
    assert len({same["canary_chat"], changed(0), changed(-1), changed(100)}) == 4


@pytest.mark.parametrize(
    ("template", "has_chat"),
    [
        ("{{ raise_exception('never') }}", False),
        (
            "{% if messages[0].role == 'system' %}{{ raise_exception('none') }}{% endif %}{{ messages[0].content }}",
            True,
        ),
    ],
)
def test_templates_that_refuse(tiny_folder: Path, tmp_path: Path, template: str, has_chat: bool) -> None:
    assert bool(fingerprints(with_template(tiny_folder, tmp_path / "m", template))["canary_chat"]) is has_chat


def test_the_date_makes_no_difference(tiny_folder: Path, tmp_path: Path) -> None:
    dated = with_template(tiny_folder, tmp_path / "a", "{{ strftime_now('%Y-%m-%d') }} {{ messages[0].content }}")
    fixed = with_template(tiny_folder, tmp_path / "b", "2026-01-01 {{ messages[0].content }}")
    assert fingerprints(dated)["canary_chat"] == fingerprints(fixed)["canary_chat"]
