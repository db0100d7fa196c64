import pytest

from loadtest.replay.prompts import PromptMaker, words
from replica.protocol.text import ModelText


def test_a_block_is_always_the_same_and_no_two_are_alike() -> None:
    maker = PromptMaker(range(100, 120))
    made = {tuple(maker.prompt([block], 16)) for block in range(5000)} | {tuple(maker.prompt([2**40], 16))}
    assert len(made) == 5001
    assert maker.prompt([7, 4999], 20) == maker.prompt([7], 16) + maker.prompt([4999], 4)
    assert {token for block in made for token in block} == set(range(100, 120))


def test_only_ids_of_plain_words_are_used(any_text: ModelText) -> None:
    specials = {any_text.tokenizer.token_to_id(token) for token in any_text.special_tokens}
    maker = PromptMaker(any_text.encode_plain(words()))
    prompt = maker.prompt(range(1000), 16_000)
    assert len(prompt) == 16_000 and not specials & set(prompt)


def test_too_few_words_are_refused() -> None:
    with pytest.raises(ValueError, match="3 ids"):
        PromptMaker([1, 2, 3, 3])
