import random

import pytest
from tokenizers import Tokenizer

from replica.detokenizer import Detokenizer, StopChecker
from replica.protocol.text import ModelText

SAMPLES = ["Zürich → 東京 🗻 naïve", "👩‍👩‍👧‍👦 family", "  leading and trailing  ", "a\n\nb\tc", "١٢٣ 한국어"]


def stream(tokenizer: Tokenizer, tokens: list[int], sizes: list[int]) -> str:
    detokenizer = Detokenizer(tokenizer)
    text, start = "", 0
    for size in sizes:
        piece = detokenizer.push(tokens[start : start + size])
        assert not piece.endswith("\N{REPLACEMENT CHARACTER}")
        text += piece
        start += size
    return text + detokenizer.push(tokens[start:]) + detokenizer.flush()


@pytest.mark.model
@pytest.mark.parametrize("sample", SAMPLES)
def test_pieces_join_to_the_text(model_text: ModelText, sample: str, seed: int) -> None:
    tokens = model_text.encode_plain(sample)
    rng = random.Random(seed)
    assert stream(model_text.tokenizer, tokens, [1] * len(tokens)) == sample
    assert stream(model_text.tokenizer, tokens, [rng.randrange(1, 4) for _ in range(len(tokens) // 4)]) == sample


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_character_that_is_never_finished_ends_as_one_replacement(tiny_text: ModelText, cut: int) -> None:
    tokens = tiny_text.encode_plain("ok🙂")
    whole = tokens[: 2 + cut]
    assert stream(tiny_text.tokenizer, whole, [1] * len(whole)) == "ok\N{REPLACEMENT CHARACTER}"


def test_invalid_bytes_do_not_stall_the_stream(tiny_text: ModelText) -> None:
    continuation = tiny_text.encode_plain("é")[1]
    detokenizer = Detokenizer(tiny_text.tokenizer)
    pieces = [detokenizer.push([continuation]) for _ in range(20)]
    assert sum(bool(piece) for piece in pieces) >= 4


@pytest.mark.parametrize("sample", SAMPLES)
def test_byte_tokens_join_to_the_text(tiny_text: ModelText, sample: str) -> None:
    tokens = tiny_text.encode_plain(sample)
    assert len(tokens) == len(sample.encode())
    assert stream(tiny_text.tokenizer, tokens, [1] * len(tokens)) == sample


def test_special_tokens_give_no_text(tiny_text: ModelText) -> None:
    tokens = [*tiny_text.encode_plain("a"), 0, 1, *tiny_text.encode_plain("b")]
    assert stream(tiny_text.tokenizer, tokens, [1] * len(tokens)) == "ab"


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
