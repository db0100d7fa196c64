import pytest
from tokenizers import Tokenizer, decoders, models

from replica.protocol.text import ModelText
from replica.token_bytes import TokenBytes


@pytest.mark.model
def test_joined_bytes_are_the_text(model_text: ModelText) -> None:
    names = TokenBytes(model_text.tokenizer)
    text = "naïve façade, 日本語 👩‍👩‍👧 \t\n  x"
    tokens = model_text.encode_plain(text)
    assert b"".join(names.bytes(token) or b"" for token in tokens).decode() == text


def test_pieces_of_other_vocabularies() -> None:
    tokenizer = Tokenizer(models.WordLevel({"▁good": 0, "<0xE2>": 1, "x": 2}, unk_token="x"))
    tokenizer.decoder = decoders.Metaspace()
    names = TokenBytes(tokenizer)
    assert [names.text(token) for token in (0, 1, 2)] == [" good", "bytes:\\xe2", "x"]


def test_specials_and_unknown_ids_have_no_bytes(tiny_text: ModelText) -> None:
    names = TokenBytes(tiny_text.tokenizer)
    assert (names.bytes(0), names.text(0)) == (None, "<|start|>")
    assert (names.bytes(299), names.text(299)) == (None, "")
