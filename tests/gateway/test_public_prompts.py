import random
from pathlib import Path

import pytest

from gateway.public_prompts import PublicPrompts
from gateway.tokens import PromptTokenizer
from replica.protocol.hashing import block_hashes, namespace_hash
from replica.protocol.text import ModelText

SYSTEM = "You know accessible hotels, their lifts and their ramps. " * 3


@pytest.fixture(scope="module")
def text(model_folder: Path) -> ModelText:
    return ModelText.load(model_folder)


def chat(question: str, system: str = SYSTEM) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


async def test_d09_tenants_meet_in_the_listed_prompt_and_nowhere_else(text: ModelText) -> None:
    tokenizer = PromptTokenizer(text, threads=1)
    tokenizer.public = tokenizer.public_prompts([SYSTEM])
    a, b = [await tokenizer.chat(chat("My name is Ada. " * 9), salt=salt) for salt in ("A", "B")]
    rendered = text.render(chat(""), add_generation_prompt=False)
    before_question = len(text.encode_chat(rendered[: rendered.index("<|im_end|>\n", len(SYSTEM) + 40)]))
    shared = a.public_tokens // 16
    assert a.public_tokens == b.public_tokens == before_question // 16 * 16
    assert a.hashes[:shared] == b.hashes[:shared]
    assert not set(a.hashes[shared:]) & set(b.hashes)
    other = await tokenizer.chat(chat("Hello", "Something else, and not listed. " * 5), salt="A")
    assert other.public_tokens == 0
    plain = await tokenizer.completion(SYSTEM + "And now?", salt="A")
    assert plain.public_tokens == len(text.encode_plain(SYSTEM)) // 16 * 16
    namespace = namespace_hash(model=text.model_fingerprint, tokenizer=text.tokenizer_fingerprint)
    unsalted = await tokenizer.chat(chat("My name is Ada. " * 9))
    assert unsalted.public_tokens == 0
    assert unsalted.hashes.tolist() == block_hashes(unsalted.tokens, namespace)
    tokenizer.close()


async def test_without_listed_prompts_nothing_is_public(text: ModelText) -> None:
    tokenizer = PromptTokenizer(text, threads=1)
    assert (await tokenizer.chat(chat("Hello"), salt="A")).public_tokens == 0
    tokenizer.close()


def test_d09_public_is_what_equals_a_listed_prompt_block_by_block(seed: int) -> None:
    rng = random.Random(seed)
    listed = [[rng.randrange(2) for _ in range(rng.randrange(100))] for _ in range(5)]
    listed += [[*listed[0][:32], *([1] * 16)]]
    for row in listed[:4]:
        listed.append(row[: rng.randrange(len(row) + 1)] + [rng.randrange(2) for _ in range(rng.randrange(60))])
    public = PublicPrompts(listed)
    for _ in range(300):
        base = rng.choice(listed)
        prompt = base[: rng.randrange(len(base) + 1)] + [rng.randrange(2) for _ in range(rng.randrange(50))]
        expected = 0
        for row in listed:
            same = next((n for n, pair in enumerate(zip(row, prompt, strict=False)) if pair[0] != pair[1]), None)
            same = min(len(row), len(prompt)) if same is None else same
            expected = max(expected, same // 16 * 16)
        assert public.tokens_of(prompt) == expected
