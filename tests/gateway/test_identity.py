import shutil
from pathlib import Path

import pytest

from gateway.identity import KINDS, Identity
from gateway.tokens import PromptTokenizer
from replica.protocol.canary import fingerprints
from replica.protocol.text import ModelText
from tests.gateway.fakes import IDENTITY, heartbeat


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("model", {"model_fingerprint": "x"}, "model fingerprint x, here model"),
        ("tokenizer", {"tokenizer_fingerprint": "x"}, "tokenizer fingerprint x, here tokenizer"),
        ("chat_template", {"template_fingerprint": "x"}, "chat template fingerprint x"),
        ("block_size", {"block_size": 32}, "block size 32, here 16"),
        ("hash_version", {"hash_version": 9}, "hash version 9, here 1"),
        ("canary", {"canary_plain": "x"}, "hash of a fixed prompt x"),
        ("canary", {"canary_chat": "x"}, "hash of a fixed chat x"),
    ],
)
def test_each_difference_is_named(kind: str, changes: dict[str, object], words: str) -> None:
    assert kind in KINDS
    [difference] = IDENTITY.differences(heartbeat("a", **changes))
    assert difference.kind == kind
    assert words in str(difference)


def test_no_difference() -> None:
    assert IDENTITY.differences(heartbeat("a")) == ()


def test_several_are_all_named_and_explain_the_canary() -> None:
    differences = IDENTITY.differences(heartbeat("a", block_size=32, model_fingerprint="x", canary_plain="x"))
    assert [difference.kind for difference in differences] == ["model", "block_size"]


def test_an_older_replica_that_does_not_tell_is_named_so() -> None:
    identity = Identity("model", "tokenizer", "template", "1", "2")
    [difference] = identity.differences(heartbeat("a"))
    assert str(difference) == "chat template fingerprint not told, here template"


def test_the_gateway_s_tokenizer_and_the_replica_s_agree_on_the_canary(model_folder: Path, tmp_path: Path) -> None:
    text = ModelText.load(model_folder)
    tokenizer = PromptTokenizer(text, threads=1)
    elsewhere = ModelText.load(shutil.copytree(model_folder, tmp_path / "copy"))
    identity = Identity.of(text, tokenizer.encoder.encode)
    tokenizer.close()
    assert identity.differences(heartbeat("a", **fingerprints(elsewhere))) == ()
