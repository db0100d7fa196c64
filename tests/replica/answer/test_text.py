"""Text, tokens and ids of an answer, however the tokens come."""

import random

import pytest

from replica.answer.text import AnswerText, echo_of
from replica.detokenizer import StopChecker, make_detokenizer
from replica.protocol.text import ModelText
from replica.sequence import FinishReason, SamplingParams, Sequence, TokenLogprobs
from replica.step import Output

STOP = 1
LOGPROBS = TokenLogprobs(-0.5, ())


def sequence() -> Sequence:
    return Sequence("s", [5], SamplingParams(100, stop_token_ids=frozenset({STOP})), 0)


def feed(answer: AnswerText, tokens: list[int], logprobs: bool = True) -> list[str]:
    """The last token ends the answer. The texts as they may go out."""
    texts = []
    for index, token in enumerate(tokens):
        ends = index == len(tokens) - 1
        reason = (FinishReason.STOP if token == STOP else FinishReason.LENGTH) if ends else None
        answer.push(Output(sequence(), token, reason, LOGPROBS if logprobs else None))
        texts.append(answer.take().text)
    return texts


def make(text: ModelText, stops: list[str] = [], **options: bool | int) -> AnswerText:  # noqa: B006
    include = bool(options.pop("include", False))
    return AnswerText(make_detokenizer(text.tokenizer), StopChecker(stops, include), **options)  # type: ignore[arg-type]


def test_the_stop_token_is_not_shown(tiny_text: ModelText) -> None:
    answer = make(tiny_text)
    assert feed(answer, [*tiny_text.encode_plain("ab"), STOP]) == ["a", "b", ""]
    assert (answer.finish_reason, answer.num_tokens) == (FinishReason.STOP, 3)


@pytest.mark.parametrize("cut", range(1, 4))
def test_half_a_character_at_the_end_is_one_replacement(tiny_text: ModelText, cut: int) -> None:
    tokens = tiny_text.encode_plain("é🙂")[: 2 + cut]
    assert "".join(feed(make(tiny_text), tokens)) == "é�"


def test_tokens_go_out_with_their_text(tiny_text: ModelText) -> None:
    answer = make(tiny_text, ["xyz"])
    seen = []
    for token in tiny_text.encode_plain("a🙂xyb"):
        answer.push(Output(sequence(), token, None, LOGPROBS))
        piece = answer.take()
        seen.append((piece.text, [item.offset for item in piece.tokens]))
    held: list[tuple[str, list[int]]] = [("", [])] * 3
    assert seen == [("a", [0]), *held, ("🙂", [1] * 4), ("", []), ("", []), ("xyb", [2, 3, 4])]


def test_tokens_of_a_stop_string_never_go_out(tiny_text: ModelText) -> None:
    for include, count in ((False, 2), (True, 4)):
        answer = make(tiny_text, ["xy"], include=include, keeps_ids=True)
        tokens = []
        ids = []
        for token in tiny_text.encode_plain("abxyz"):
            answer.push(Output(sequence(), token, None, LOGPROBS))
            piece = answer.take()
            tokens += piece.tokens
            ids += piece.token_ids
        assert answer.finish_reason is FinishReason.STOP
        assert len(tokens) == count
        assert ids == tiny_text.encode_plain("abxy")
        assert answer.num_tokens == 4


def test_a_stop_string_counts_only_after_min_tokens(tiny_text: ModelText) -> None:
    answer = make(tiny_text, ["x"], min_tokens=4)
    assert "".join(feed(answer, tiny_text.encode_plain("axbxc"))) == "axb"


def test_random_answers_keep_text_and_tokens_together(tiny_text: ModelText, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        tokens = [rng.choice([0, *range(2, 258)]) for _ in range(rng.randrange(1, 12))]
        stops = [rng.choice(["ab", "\n", "é"])]
        answer = make(tiny_text, stops)
        text, count = "", 0
        for index, token in enumerate(tokens):
            answer.push(Output(sequence(), token, FinishReason.LENGTH if index == len(tokens) - 1 else None, LOGPROBS))
            piece = answer.take()
            text += piece.text
            assert all(item.offset <= len(text) for item in piece.tokens)
            count += len(piece.tokens)
            if answer.finish_reason is not None:
                break
        if answer.finish_reason is FinishReason.LENGTH:
            assert count == len(tokens)
            assert text == tiny_text.decode(tokens)


def test_an_echo_stands_before_the_answer(tiny_text: ModelText) -> None:
    prompt = tiny_text.encode_plain("<|start|>né")
    text, tokens = echo_of(make_detokenizer(tiny_text.tokenizer, skip_special=False), prompt, [None, *[LOGPROBS] * 3])
    assert text == "<|start|>né"
    assert [item.offset for item in tokens] == [0, 9, 10, 10]
    answer = AnswerText(make_detokenizer(tiny_text.tokenizer), StopChecker(["n"]), echo=tokens, echo_text=text)
    answer.push(Output(sequence(), tiny_text.encode_plain("b")[0], None, LOGPROBS))
    piece = answer.take()
    assert piece.text == "<|start|>néb"
    assert [item.offset for item in piece.tokens] == [0, 9, 10, 10, 11]
