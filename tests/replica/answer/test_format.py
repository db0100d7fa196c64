"""Chunks against the official client's types, and the fast way to render one against the plain way."""

import json
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from replica.answer.chat import ChatFormat
from replica.answer.choice import Choice, Part
from replica.answer.completion import CompletionFormat
from replica.answer.format import DONE_EVENT, AnswerFormat, Shown
from replica.answer.text import AnswerText
from replica.detokenizer import StopChecker, make_detokenizer
from replica.protocol.text import ModelText
from replica.sequence import FinishReason, SamplingParams, Sequence
from replica.step import Output
from replica.token_bytes import TokenBytes

TRICKY = 'quote " back \\ line \n sep \u2028 emoji 🙂 </script>'


def make(text: ModelText, shape: type[AnswerFormat], shown: Shown = Shown()) -> AnswerFormat:  # noqa: B008
    return shape("id", "the model", 7, shown, TokenBytes(text.tokenizer))


def choice_of(text: ModelText, index: int = 0) -> Choice:
    def new_text(sequence: Sequence) -> AnswerText:
        return AnswerText(make_detokenizer(text.tokenizer), StopChecker([]))

    return Choice(index, Sequence("s", [3, 4], SamplingParams(9), 0), new_text)


def events(data: bytes) -> list[Any]:
    return [json.loads(event.removeprefix(b"data: ")) for event in data.split(b"\n\n") if event]


@pytest.mark.parametrize(("shape", "type"), [(ChatFormat, ChatCompletionChunk), (CompletionFormat, Completion)])
def test_chunks_are_what_the_official_client_expects(tiny_text: ModelText, shape: Any, type: Any) -> None:
    # The client's type of a completion takes no null reason, which OpenAI itself sends; the client doesn't mind.
    form, choice = make(tiny_text, shape), choice_of(tiny_text, 2)
    first, later = (events(form.chunk(choice, Part(TRICKY, [], []), [choice])) for _ in range(2))
    for [chunk] in (first, later):
        parsed = type.construct(**chunk)
        delta = parsed.choices[0].delta.content if shape is ChatFormat else parsed.choices[0].text
        assert (delta, parsed.choices[0].index, parsed.choices[0].finish_reason) == (TRICKY, 2, None)
        assert (parsed.id, parsed.created, parsed.model) == (f"{form.ID_PREFIX}-id", 7, "the model")
    assert set(first[0]) == set(later[0])


def test_the_role_comes_first_and_once(tiny_text: ModelText) -> None:
    form, choice = make(tiny_text, ChatFormat), choice_of(tiny_text)
    chunks = events(b"".join(form.chunk(choice, Part("x", [], []), [choice]) for _ in range(3)))
    assert [chunk["choices"][0]["delta"].get("role") for chunk in chunks] == ["assistant", None, None]


def test_an_answer_without_text_has_a_role_and_a_reason(tiny_text: ModelText) -> None:
    form, choice = make(tiny_text, ChatFormat, Shown(usage=True)), choice_of(tiny_text)
    assert choice.push(Output(choice.sequence, 0, FinishReason.STOP))
    part = choice.take()
    assert part is not None
    [chunk] = events(form.chunk(choice, part, [choice]))
    assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunk["choices"][0]["finish_reason"] == "stop"
    end = form.end([choice])
    assert end.endswith(DONE_EVENT)
    [usage] = events(end.removesuffix(DONE_EVENT))
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 1


def test_only_the_first_chunk_has_the_prompt_s_ids(tiny_text: ModelText) -> None:
    for shape in (ChatFormat, CompletionFormat):
        form, choice = make(tiny_text, shape, Shown(token_ids=True)), choice_of(tiny_text)
        chunks = events(b"".join(form.chunk(choice, Part("x", [], [5]), [choice]) for _ in range(2)))
        holders = [chunk if shape is ChatFormat else chunk["choices"][0] for chunk in chunks]
        assert [holder.get("prompt_token_ids") for holder in holders] == [[3, 4], None]
        assert [chunk["choices"][0]["token_ids"] for chunk in chunks] == [[5], [5]]
