import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gateway.prompts.memo import SegmentMemo
from gateway.prompts.segments import SegmentEncoder
from gateway.tokens import INLINE_NEW, INLINE_RENDERED, MEMO_BYTES, PromptTokenizer
from replica.protocol.hashing import block_hashes, chain_of, namespace_hash
from replica.protocol.messages import ChatMessage
from replica.protocol.openai import RequestError
from replica.protocol.text import LONG, ModelText
from tests.gateway.fakes import write_model

MESSAGES = [
    {"role": "system", "content": "You know accessible hotels. " * 20},
    {"role": "user", "content": "Is there a ramp?"},
]


@pytest.fixture(scope="module")
def text(model_folder: Path) -> ModelText:
    return ModelText.load(model_folder)


async def test_a_chat_is_rendered_tokenised_and_hashed_as_a_replica_would(text: ModelText) -> None:
    tokenizer = PromptTokenizer(text, threads=1)
    prompt = await tokenizer.chat(MESSAGES)
    assert prompt.tokens == text.encode_chat(text.render(MESSAGES))
    namespace = namespace_hash(model=text.model_fingerprint, tokenizer=text.tokenizer_fingerprint)
    assert prompt.hashes.tolist() == block_hashes(prompt.tokens, namespace)
    tokenizer.close()


async def test_salts_have_blocks_of_their_own(text: ModelText) -> None:
    tokenizer = PromptTokenizer(text, threads=1)
    prompts = [await tokenizer.chat(MESSAGES, salt=salt) for salt in ("a", "b", None, "a")]
    assert prompts[0] == prompts[3]
    assert len({tuple(prompt.tokens) for prompt in prompts}) == 1
    assert len({tuple(prompt.hashes) for prompt in prompts}) == 3
    namespace = namespace_hash(model=text.model_fingerprint, tokenizer=text.tokenizer_fingerprint, salt="a")
    assert prompts[0].hashes.tolist() == block_hashes(prompts[0].tokens, namespace)
    tokenizer.close()


async def test_a_second_turn_shares_the_first_one_s_blocks(text: ModelText) -> None:
    tokenizer = PromptTokenizer(text, threads=2)
    first = await tokenizer.chat(MESSAGES)
    more = [*MESSAGES, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And a lift?"}]
    second = await tokenizer.chat(more)
    assert second.hashes[: len(first.hashes)] == first.hashes
    tokenizer.close()


async def test_the_event_loop_goes_on_meanwhile(text: ModelText) -> None:
    tokenizer = PromptTokenizer(text, threads=1)
    work = asyncio.create_task(tokenizer.completion("hotel " * 6_000))
    turns = 0
    while not work.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 1, "on the loop itself it would be done within one turn"
    tokenizer.close()


@pytest.mark.parametrize("seed", range(5))
def test_segments_give_the_ids_of_the_whole(text: ModelText, seed: int) -> None:
    print("seed", seed)
    rng = Random(seed)
    encoder = SegmentEncoder(text, SegmentMemo(MEMO_BYTES))
    assert encoder.exact
    pieces = [*text.special_tokens, " ", "\n", "the", "é", "日本", "👩‍👩‍👧", "\u200b", "<|im", "|>", "word"]
    for _ in range(200):
        sample = "".join(rng.choices(pieces, k=rng.randrange(20)))
        assert encoder.encode(sample) == text.encode_chat(sample), repr(sample)


@pytest.mark.parametrize("quirk", [{"lstrip": True}, {"rstrip": True}, {"add_prefix_space": True}])
def test_a_tokenizer_that_doesn_t_cut_exactly_is_used_whole(
    tmp_path: Path, quirk: dict[str, bool], caplog: pytest.LogCaptureFixture
) -> None:
    text = ModelText.load(write_model(tmp_path / "quirk", **quirk))
    encoder = SegmentEncoder(text, SegmentMemo(MEMO_BYTES))
    sample = "word <|im_start|> word <|im_end|>x"
    assert encoder.encode(sample) == text.encode_chat(sample)
    if not encoder.exact:
        assert len(caplog.records) == 1


def test_the_check_finds_a_tokenizer_that_eats_spaces(tmp_path: Path) -> None:
    text = ModelText.load(write_model(tmp_path / "quirk", lstrip=True))
    assert not SegmentEncoder(text, SegmentMemo(MEMO_BYTES)).exact


async def test_token_ids_outside_the_vocabulary_are_refused(text: ModelText) -> None:
    tokenizer = PromptTokenizer(text, threads=1)
    with pytest.raises(RequestError, match="outside the vocabulary"):
        await tokenizer.completion([0, text.vocab_size])
    tokenizer.close()


@pytest.mark.parametrize("kind", ["chat", "completion"])
async def test_megabytes_are_refused_without_being_tokenised(text: ModelText, kind: str) -> None:
    tokenizer = PromptTokenizer(text, threads=1)
    huge = "a" * 5_000_000
    with pytest.raises(RequestError, match=r"50000\d\d characters") as caught:
        await (tokenizer.chat([{"role": "user", "content": huge}]) if kind == "chat" else tokenizer.completion(huge))
    assert caught.value.code == "context_length_exceeded"
    tokenizer.close()


async def test_a20_a_long_run_without_spaces_leaves_the_event_loop_alone(tmp_path: Path) -> None:
    text = ModelText.load(write_model(tmp_path / "big", max_context=1_000_000), "big")
    tokenizer = PromptTokenizer(text, 1)
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(tokenizer.chat([{"role": "user", "content": "a" * 400_000}]))
    longest, last = 0.0, loop.time()
    while not task.done():
        await asyncio.sleep(0.001)
        longest, last = max(longest, loop.time() - last), loop.time()
    assert len((await task).tokens) > 400_000
    assert longest < 0.25
    tokenizer.close()


@pytest.mark.parametrize("length", [LONG - 1, LONG + 1, 5 * LONG])
def test_long_texts_get_the_same_tokens(text: ModelText, length: int) -> None:
    rendered = ("the naïve façade <|im_start|> and 日本 " * length)[:length]
    assert text.encode_chat(rendered) == text.tokenizer.encode(rendered, add_special_tokens=False).ids


async def test_a_chat_whose_roles_are_known_is_not_rendered(tmp_path: Path) -> None:
    text = ModelText.load(write_model(tmp_path / "apart", names=("<|im_start|>", "<|im_end|>")))
    tokenizer = PromptTokenizer(text, threads=1)
    await tokenizer.chat(MESSAGES)
    tokenizer._render = lambda messages, tools: pytest.fail("rendered")  # type: ignore[method-assign]
    for content in ("Is there a lift?", "<|im_end|>", "", "long " * 1000):
        messages = [MESSAGES[0], {"role": "user", "content": content}]
        prompt = await tokenizer.chat(messages)
        assert prompt.tokens == text.encode_chat(text.render(messages)), content
    tokenizer.close()


@pytest.mark.parametrize("seed", range(4))
async def test_prompts_at_once_are_those_rendered_tokenised_and_hashed_step_by_step(tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    rng = Random(seed)
    text = ModelText.load(write_model(tmp_path / "apart", names=("<|im_start|>", "<|im_end|>")))
    tokenizer = PromptTokenizer(text, threads=1)
    system = MESSAGES[0]["content"]
    tokenizer.public = tokenizer.public_prompts([system])
    pieces = [system, "<|im_end|>", "<|im_", "the", " ", "\n", "é", "日本", "ramp " * 30, ""]
    public = at_once = 0
    for _ in range(150):
        messages = [
            ChatMessage(
                role=rng.choice(("system", "developer", "user", "assistant")),
                content="".join(rng.choices(pieces, k=rng.randrange(4))),
            )
            for _ in range(rng.randrange(1, 5))
        ]
        if rng.randrange(2):
            messages.insert(0, ChatMessage(role="system", content=system))
        salt = rng.choice((None, "a", "b"))
        tokens = text.encode_chat(text.render([message.for_template() for message in messages]))
        prompt = tokenizer.at_once(messages, salt)
        at_once += prompt is not None
        if prompt is None:
            prompt = await tokenizer.chat([message.for_template() for message in messages], salt=salt)
            assert tokenizer.at_once(messages, salt) == prompt
        assert prompt.tokens == tokens and prompt.length == len(tokens)
        assert prompt.public_tokens == (0 if salt is None else tokenizer.public.tokens_of(tokens))
        chain = chain_of(tokenizer._namespace_of, salt, prompt.public_tokens)
        assert prompt.hashes.tolist() == block_hashes(tokens, *chain)
        public += prompt.public_tokens > 0
    assert public > 20 and at_once > 100
    tokenizer.close()


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "a", "name": "b"},
        {"role": "tool", "content": "a", "tool_call_id": "1"},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": ""}}]},
        {"role": "user", "content": "new " * INLINE_NEW},
        {"role": "user", "content": "a" * (INLINE_RENDERED + 1)},
    ],
)
async def test_what_must_be_rendered_or_is_long_isn_t_done_at_once(tmp_path: Path, message: dict[str, Any]) -> None:
    text = ModelText.load(write_model(tmp_path / "apart", names=("<|im_start|>", "<|im_end|>")))
    tokenizer = PromptTokenizer(text, threads=1)
    hello = ChatMessage(role="user", content="Hello")
    assert tokenizer.at_once([hello], None) is not None
    assert tokenizer.at_once([hello, ChatMessage.model_validate(message)], None) is None
    tokenizer.close()


async def test_hashes_are_the_same_without_a_compiler(text: ModelText) -> None:
    tokenizer = PromptTokenizer(text, threads=1)
    native = await tokenizer.chat(MESSAGES, salt="a")
    tokenizer._library = None
    assert await tokenizer.chat(MESSAGES, salt="a") == native
    tokenizer.close()
