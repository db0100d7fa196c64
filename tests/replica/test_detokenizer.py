import random
from collections.abc import Callable

import pytest
from tokenizers import Tokenizer, decoders, models

from replica.detokenizer import (
    ByteLevelDetokenizer,
    Detokenizer,
    StopChecker,
    WindowDetokenizer,
    make_detokenizer,
)
from replica.protocol.text import ModelText

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


@pytest.mark.model
def test_any_tokens_give_what_decoding_them_at_once_gives(model_text: ModelText, seed: int) -> None:
    """Random tokens are mostly broken UTF-8, also within a token."""
    rng = random.Random(seed)
    for _ in range(300):
        tokens = [rng.randrange(model_text.vocab_size) for _ in range(rng.randrange(1, 30))]
        pieces = pieces_of(ByteLevelDetokenizer(model_text.tokenizer), tokens)
        assert "".join(pieces) == model_text.decode(tokens)


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


def test_random_cuts_never_change_the_answer_nor_leak(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(2000):
        text = "".join(rng.choice("ab") for _ in range(rng.randrange(1, 25)))
        stops = ["".join(rng.choice("ab") for _ in range(rng.randrange(1, 5))) for _ in range(rng.randrange(1, 4))]
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(5)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        checker = StopChecker(stops)
        out = ""
        for piece in pieces:
            out += checker.push(piece)
            assert not any(stop in out for stop in stops)
        out += "" if checker.stopped else checker.flush()
        first = min((text.find(stop) for stop in stops if stop in text), default=len(text))
        # A piece may hold a later stop before an earlier-starting longer one is complete: never more than up to
        # the first, and all of it where there is none.
        assert text.startswith(out)
        assert (out == text) == (first == len(text))
