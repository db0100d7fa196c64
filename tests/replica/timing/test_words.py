import string
from statistics import mean

import pytest

from replica.protocol.text import ModelText
from replica.sequence import FinishReason, SamplingParams, Sequence
from replica.timing.words import Words


def answer(text: ModelText, prompt: list[int], **params: object) -> Sequence:
    settings = SamplingParams(**({"max_tokens": 1000, "stop_token_ids": text.stop_token_ids} | params))  # type: ignore[arg-type]
    sequence = Sequence("s", prompt, settings, 0)
    words = Words(text.tokenizer, text.stop_token_ids)
    while sequence.num_output == 0 or sequence.finish_reason() is None:
        sequence.append(words.next(sequence))
    return sequence


def output(sequence: Sequence) -> list[int]:
    return sequence.tokens[len(sequence.prompt) :]


def test_an_answer_depends_on_the_prompt_alone(tiny_text: ModelText) -> None:
    prompt = tiny_text.encode_plain("Is there a ramp?")
    first = output(answer(tiny_text, prompt))
    assert output(answer(tiny_text, prompt, temperature=0.0, seed=7)) == first
    assert output(answer(tiny_text, [*prompt[:2], prompt[2] + 1, *prompt[3:]])) != first


def test_it_goes_on_from_any_place(tiny_text: ModelText) -> None:
    prompt = tiny_text.encode_plain("Is there a lift?")
    whole = output(answer(tiny_text, prompt, max_tokens=60, stop_token_ids=frozenset()))
    for done in (1, 17, 59):
        rest = answer(tiny_text, prompt + whole[:done], max_tokens=60 - done, stop_token_ids=frozenset())
        assert output(rest) == whole[done:]


def test_a_vocabulary_of_single_bytes_gives_printable_text(tiny_text: ModelText) -> None:
    said = tiny_text.decode(output(answer(tiny_text, [5, 6], stop_token_ids=frozenset())), skip_special_tokens=False)
    assert len(said) == 1000
    assert set(said) <= set(string.printable[:95])


def test_where_it_may_not_end_it_goes_on(tiny_text: ModelText) -> None:
    lengths = [answer(tiny_text, [n], min_tokens=300).num_output for n in range(2, 12)]
    assert min(lengths) >= 300
    assert answer(tiny_text, [5], stop_token_ids=frozenset()).finish_reason() is FinishReason.LENGTH


def test_tokens_that_would_stop_it_come_only_after_min_tokens(tiny_text: ModelText) -> None:
    # All that end a sentence or are vowels; these also stop it wherever they come after 50 tokens.
    stops = frozenset(tiny_text.encode_plain(".aeiou"))
    sequences = [answer(tiny_text, [n], min_tokens=50, stop_token_ids=stops) for n in range(2, 30)]
    for sequence in sequences:
        assert not stops & set(output(sequence)[:50])
        assert output(sequence)[-1] in stops


@pytest.mark.model
def test_sentences_of_words_that_tokenise_to_the_same_ids(model_text: ModelText) -> None:
    lengths = []
    for n in range(60):
        prompt = model_text.encode_chat(model_text.render([{"role": "user", "content": f"Hotel {n}?"}]))
        sequence = answer(model_text, prompt)
        tokens = output(sequence)
        lengths.append(len(tokens))
        if tokens[-1] in model_text.stop_token_ids:
            tokens.pop()
            assert model_text.decode(tokens).endswith(".")
        said = model_text.decode(tokens)
        assert said[0].isupper()
        assert set(said) <= set(string.ascii_letters + " .")
        assert model_text.encode_plain(said) == tokens
    # It's a function of the prompts, so these are always the same.
    assert 80 < mean(lengths) < 250
