from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from replica.detokenizer import (
    ByteLevelDetokenizer,
    Detokenizer,
    StopChecker,
    WindowDetokenizer,
    make_detokenizer,
)
from replica.protocol.text import ModelText
from replica.token_bytes import byte_alphabet

SAMPLES = ["Zürich → 東京 🗻 naïve", "👩‍👩‍👧‍👦 family", "  leading and trailing  ", "a\n\nb\tc", "١٢٣ 한국어"]


MAKERS: list[Callable[[Tokenizer], Detokenizer]] = [ByteLevelDetokenizer, WindowDetokenizer]
each_kind = pytest.mark.parametrize("make", MAKERS)


def pieces_of(detokenizer: Detokenizer, tokens: list[int]) -> list[str]:
    return [*(detokenizer.push(token) for token in tokens), detokenizer.flush()]


@each_kind
@pytest.mark.model
@pytest.mark.parametrize("sample", SAMPLES)
def test_pieces_join_to_the_text(model_text: ModelText, sample: str, make: Callable[[Tokenizer], Detokenizer]) -> None:
    pieces = pieces_of(make(model_text.tokenizer), model_text.encode_plain(sample))
    assert "".join(pieces) == sample
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@each_kind
@pytest.mark.parametrize("sample", SAMPLES)
def test_single_bytes_join_to_the_text(
    tiny_text: ModelText, sample: str, make: Callable[[Tokenizer], Detokenizer]
) -> None:
    tokens = tiny_text.encode_plain(sample)
    assert len(tokens) == len(sample.encode())
    assert "".join(pieces_of(make(tiny_text.tokenizer), tokens)) == sample


ALPHABETS = [
    st.characters(exclude_categories=["Cs"]),
    st.sampled_from("👩👨👧🗻🏳\u200d\ufe0f\u0301\u0323eè한ก้नि東京 \n"),
    st.sampled_from("the quick  brown\n\tfox"),
]
TEXTS = st.one_of(*(st.text(alphabet, max_size=60) for alphabet in ALPHABETS))
exhaustively = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@each_kind
@pytest.mark.model
@exhaustively
@given(sample=TEXTS)
def test_any_text_comes_out_as_it_went_in(
    model_text: ModelText, sample: str, make: Callable[[Tokenizer], Detokenizer]
) -> None:
    """No replacement character, then, but those of the text itself. The model's vocabulary lacks some bytes."""
    known = "".join(c for c in sample if model_text.decode(model_text.encode_plain(c)) == c)
    assert "".join(pieces_of(make(model_text.tokenizer), model_text.encode_plain(known))) == known


@each_kind
@pytest.mark.model
@exhaustively
@given(data=st.data())
def test_any_tokens_give_what_decoding_them_at_once_gives(
    model_text: ModelText, data: st.DataObject, make: Callable[[Tokenizer], Detokenizer]
) -> None:
    """Random tokens are mostly broken UTF-8, also within a token; single bytes and special tokens are among them more
    often than by chance."""
    token = st.one_of(
        st.integers(0, model_text.vocab_size - 1), st.integers(0, 20), st.sampled_from(byte_tokens(model_text))
    )
    tokens = data.draw(st.lists(token, max_size=40))
    assert "".join(pieces_of(make(model_text.tokenizer), tokens)) == model_text.decode(tokens)


def byte_tokens(text: ModelText) -> list[int]:
    """Those of the bytes that occur outside ASCII."""
    ids = (text.tokenizer.token_to_id(piece) for piece in sorted(pre_tokenizers.ByteLevel.alphabet()))
    return [number for number in ids if number is not None and not text.decode([number]).isascii()]


@each_kind
@exhaustively
@given(data=st.binary(max_size=200))
def test_any_bytes_give_what_decoding_them_at_once_gives(
    tiny_text: ModelText, data: bytes, make: Callable[[Tokenizer], Detokenizer]
) -> None:
    """And nothing is held for longer than a character may be unfinished."""
    tokens = [token for byte in data for token in one_byte(tiny_text, byte)]
    detokenizer = make(tiny_text.tokenizer)
    out = ""
    for count, token in enumerate(tokens, 1):
        out += detokenizer.push(token)
        whole = data[:count].decode(errors="replace")
        assert whole.startswith(out) and len(whole) - len(out) <= 3
    assert out + detokenizer.flush() == data.decode(errors="replace")


def one_byte(text: ModelText, byte: int) -> list[int]:
    """The tiny tokenizer has a token for each byte."""
    (character,) = (key for key, value in byte_alphabet().items() if value == byte)
    token = text.tokenizer.token_to_id(character)
    assert token is not None
    return [token]


@each_kind
@pytest.mark.parametrize("invalid", [b"\x80", b"\xe2\x82", b"\xf0\x9f\x97", b"\xff\xe2"])
def test_invalid_bytes_without_end(
    tiny_text: ModelText, invalid: bytes, make: Callable[[Tokenizer], Detokenizer]
) -> None:
    data = invalid * 200 + "東京".encode()
    tokens = [token for byte in data for token in one_byte(tiny_text, byte)]
    assert "".join(pieces_of(make(tiny_text.tokenizer), tokens)) == data.decode(errors="replace")


@each_kind
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_character_that_is_never_finished_ends_as_one_replacement(
    tiny_text: ModelText, cut: int, make: Callable[[Tokenizer], Detokenizer]
) -> None:
    tokens = tiny_text.encode_plain("ok🙂")[: 2 + cut]
    assert "".join(pieces_of(make(tiny_text.tokenizer), tokens)) == "ok\N{REPLACEMENT CHARACTER}"


@each_kind
def test_invalid_bytes_do_not_stall_the_stream(tiny_text: ModelText, make: Callable[[Tokenizer], Detokenizer]) -> None:
    continuation = tiny_text.encode_plain("é")[1]
    detokenizer = make(tiny_text.tokenizer)
    assert sum(bool(detokenizer.push(continuation)) for _ in range(20)) >= 4


@each_kind
def test_special_tokens_give_no_text(tiny_text: ModelText, make: Callable[[Tokenizer], Detokenizer]) -> None:
    tokens = [*tiny_text.encode_plain("a"), 0, 1, *tiny_text.encode_plain("b")]
    assert "".join(pieces_of(make(tiny_text.tokenizer), tokens)) == "ab"


def test_the_exact_one_is_taken_for_byte_level_tokenizers(tiny_text: ModelText) -> None:
    assert isinstance(make_detokenizer(tiny_text.tokenizer), ByteLevelDetokenizer)


def test_tokens_whose_text_depends_on_the_one_before() -> None:
    """Metaspace drops the space of the first word only, so a token alone decodes to something else."""
    tokenizer = Tokenizer(models.WordLevel({"\u2581good": 0, "\u2581morning": 1}, unk_token="\u2581good"))
    tokenizer.decoder = decoders.Metaspace()
    detokenizer = make_detokenizer(tokenizer)
    assert isinstance(detokenizer, WindowDetokenizer)
    assert pieces_of(detokenizer, [0, 1, 1]) == ["good", " morning", " morning", ""]


def test_bytes_as_tokens_beside_words() -> None:
    """Sentencepiece's fallback for characters that the vocabulary lacks: each byte a token of its own."""
    vocab = {"\u2581": 0, "\u2581caf": 1} | {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    detokenizer = make_detokenizer(tokenizer)
    assert isinstance(detokenizer, WindowDetokenizer)
    tokens = [1, *(2 + byte for byte in "é🗻".encode()), 1, 1]
    pieces = pieces_of(detokenizer, tokens)
    assert "".join(pieces) == tokenizer.decode(tokens) == "café🗻 caf caf"
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@pytest.mark.parametrize("kind", [ByteLevelDetokenizer, WindowDetokenizer])
def test_special_tokens_are_shown_if_wanted(tiny_text: ModelText, kind: Any) -> None:
    text = "<|start|>é<|end|>x"
    tokens = tiny_text.encode_plain(text)
    assert "".join(pieces_of(kind(tiny_text.tokenizer, skip_special=False), tokens)) == text
    assert "".join(pieces_of(kind(tiny_text.tokenizer), tokens)) == "éx"


def test_a_stop_string_goes_out_if_wanted() -> None:
    checker = StopChecker(["STOP", "x"], include=True)
    assert [checker.push(piece) for piece in ("a ST", "OP b", "c")] == ["a ", "STOP", ""]


def check_stops(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    checker = StopChecker(stops)
    out = ""
    for piece in pieces:
        out += checker.push(piece)
    return out + ("" if checker.stopped else checker.flush()), checker.stopped


@pytest.mark.parametrize("at", range(12))
def test_a_stop_split_at_every_offset(at: int) -> None:
    text = "hello STOP ab"
    assert check_stops([text[:at], text[at:]], ["STOP"]) == ("hello ", True)


def test_the_earliest_of_several_stops_wins() -> None:
    assert check_stops(["one two three"], ["three", "two"]) == ("one ", True)


def test_a_tail_that_looked_like_a_stop_is_given_back() -> None:
    assert check_stops(["abc ST", "O", "x"], ["STOP"]) == ("abc STOx", False)
    assert check_stops(["abc STO"], ["STOP"]) == ("abc STO", False)


def test_the_stop_that_is_complete_first_wins_however_the_text_is_cut() -> None:
    for pieces in (["xabcd"], ["xabc", "d"], list("xabcd")):
        assert check_stops(pieces, ["abcd", "bc"]) == ("xa", True)
        assert check_stops(pieces, ["bc", "abc"]) == ("x", True)


def cut_by_hand(text: str, stops: list[str]) -> str:
    """Character by character: the first end of a stop, and of those the longest."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


def may_become_a_stop(tail: str, stops: list[str]) -> bool:
    return any(stop.startswith(tail) for stop in stops)


@settings(max_examples=2000, deadline=None)
@given(
    text=st.text("ab🗻", max_size=30),
    stops=st.lists(st.text("ab🗻", min_size=1, max_size=5), max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=6),
)
def test_random_cuts_never_change_the_answer_nor_hold_more_than_needed(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    places = sorted(min(cut, len(text)) for cut in cuts)
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    expected = cut_by_hand(text, stops)
    checker = StopChecker(stops)
    out = pushed = ""
    for piece in pieces:
        out += checker.push(piece)
        pushed += piece
        held = pushed[len(out) :]
        assert expected.startswith(out)
        assert checker.stopped or not held or may_become_a_stop(held, stops)
    assert checker.stopped == (expected != text or any(text.endswith(stop) for stop in stops))
    assert out + ("" if checker.stopped else checker.flush()) == expected
