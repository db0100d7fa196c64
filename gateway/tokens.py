"""Prompts to token ids and block hashes: what is remembered at once, the rest in threads, off the event loop.

A chat isn't rendered where its roles have been seen before (prompts/skeleton.py), and its segments aren't tokenised
twice (prompts/segments.py).
"""

import asyncio
import functools
from array import array
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from gateway.prompts.memo import SegmentMemo
from gateway.prompts.segments import Plan, SegmentEncoder
from gateway.prompts.skeleton import SHAPES, Skeletons
from gateway.prompts.token_ids import TokenIds
from gateway.public_prompts import PublicPrompts, public_tokens
from gateway.routing.native.library import the_library
from replica.protocol.checks import check_length, check_tokens
from replica.protocol.hashing import BLOCK_SIZE, Fork, block_hashes, chain_of, namespace_hash
from replica.protocol.messages import ChatMessage, template_role
from replica.protocol.openai import RequestError
from replica.protocol.text import ModelText, TemplateError

NAMESPACES = 4096
"""Salts whose hashes are remembered."""

MEMO_BYTES = 32 << 20
INLINE_RENDERED = 64 << 10
"""Characters of messages that are rendered, and looked up by segment, on the event loop: 1 ms."""
INLINE_NEW = 1024
"""Characters that are tokenised there: 0.5 ms, where going to a thread and back costs 0.2 ms and waits for a turn."""

_PLAIN = {"role", "content"}
"""What a message has that is nothing but text."""

_T = TypeVar("_T")
_ZERO = array("Q", bytes(8))


# Not frozen, as TokenIds aren't.
@dataclass(slots=True)
class Prompt:
    ids: TokenIds
    length: int
    hashes: "array[int]"
    """Of 64 bits each, as the index takes them without converting."""
    public_tokens: int = 0
    """The first ones, which all tenants share; see public_prompts.py."""

    @property
    def tokens(self) -> list[int]:
        return self.ids.tokens


class PromptTokenizer:
    """Close it when done: it owns threads."""

    def __init__(self, text: ModelText, threads: int, memo_bytes: int = MEMO_BYTES) -> None:
        self._text = text
        self._namespace = functools.lru_cache(NAMESPACES)(self._namespace_of)
        self.memo = SegmentMemo(memo_bytes)
        self.encoder = SegmentEncoder(text, self.memo)
        self._skeletons = Skeletons(text)
        self._plans: dict[tuple[str, ...], Plan | None] = {}
        self._library = the_library()
        self.public = PublicPrompts()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tokenise")

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def chat(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = (), salt: str | None = None
    ) -> Prompt:
        """Raises RequestError where the chat template refuses the messages."""
        contents = [message["content"] for message in messages]
        chars = sum(map(len, contents))
        plan = None if tools else self._plan_for(messages)
        if plan is not None and plan.chars + chars <= self._text.max_chars:
            return await self.in_thread(lambda: self._filled(plan, contents, salt))
        if chars > INLINE_RENDERED or tools:
            return await self.in_thread(lambda: self._prompt(self.encoder.ids(self._render(messages, tools)), salt))
        rendered = self._render(messages, tools)
        known = self.encoder.encode_known(rendered, INLINE_NEW)
        if known is not None:
            return self._prompt(known, salt)
        return await self.in_thread(lambda: self._prompt(self.encoder.ids(rendered), salt))

    def at_once(self, messages: Sequence[ChatMessage], salt: str | None) -> Prompt | None:
        """Of a chat without tools, if it needn't be rendered and little of it is new; else `chat` is for it."""
        roles, contents, chars = [], [], 0
        for message in messages:
            if message.__pydantic_fields_set__ != _PLAIN:
                return None
            content = message.content
            roles.append(message.role)
            contents.append(content)
            chars += len(content)
        plan = self._plan_of(tuple(roles))
        if plan is None or chars > INLINE_RENDERED or plan.chars + chars > self._text.max_chars:
            return None
        ids = self.encoder.fill(plan, contents, INLINE_NEW)
        return None if ids is None else self._prompt(ids, salt)

    def _filled(self, plan: Plan, contents: Sequence[str], salt: str | None) -> Prompt:
        ids = self.encoder.fill(plan, contents)
        assert ids is not None
        return self._prompt(ids, salt)

    def _plan_for(self, messages: Sequence[dict[str, Any]]) -> Plan | None:
        """Of messages that have nothing but a role and a content."""
        if any(len(message) != len(_PLAIN) for message in messages):
            return None
        return self._plan_of(tuple([message["role"] for message in messages]))

    def _plan_of(self, roles: tuple[str, ...]) -> Plan | None:
        try:
            return self._plans[roles]
        except KeyError:
            parts = self._skeletons.of(tuple(map(template_role, roles)))
            plan = None if parts is None else self.encoder.plan(parts)
            if len(self._plans) >= SHAPES:
                self._plans.clear()
            self._plans[roles] = plan
            return plan

    async def completion(self, prompt: str | list[int], salt: str | None = None) -> Prompt:
        """Raises RequestError for token ids outside the vocabulary."""
        if len(prompt) <= INLINE_NEW:
            return self._prompt(self._encode_completion(prompt), salt)
        return await self.in_thread(lambda: self._prompt(self._encode_completion(prompt), salt))

    def public_prompts(self, prompts: Iterable[str]) -> PublicPrompts:
        """These system prompts, at the head of chats and of plain prompts. Raises TemplateError."""
        rows = []
        for prompt in prompts:
            rows.append(public_tokens(functools.partial(self._plain_below, prompt)))
            if self._text.template is not None:
                rows.append(public_tokens(functools.partial(self._chat_below, prompt)))
        return PublicPrompts(rows)

    def _plain_below(self, prompt: str, question: str) -> list[int]:
        return self._text.encode_plain(prompt + question)

    def _chat_below(self, prompt: str, question: str) -> list[int]:
        system, user = {"role": "system", "content": prompt}, {"role": "user", "content": question}
        return self.encoder.encode(self._text.render([system, user]))

    async def in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _render(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> str:
        try:
            rendered = self._text.render(messages, tools)
        except TemplateError as error:
            raise RequestError(str(error), param="messages", code="invalid_value") from error
        check_length(rendered, self._text, "messages")
        return rendered

    def _encode_completion(self, prompt: str | list[int]) -> TokenIds:
        if isinstance(prompt, str):
            check_length(prompt, self._text, "prompt")
            return TokenIds.of(self._text.encode_plain(prompt))
        check_tokens(prompt, self._text.vocab_size, "prompt")
        return TokenIds.of(prompt)

    def _prompt(self, ids: TokenIds, salt: str | None) -> Prompt:
        if not ids.packed:
            raise RequestError("the prompt has no tokens", code="invalid_value")
        if salt is None:
            return Prompt(ids, len(ids), self._hashes(ids, self._namespace(None), None))
        public = self.public.packed_tokens_of(ids.packed)
        return Prompt(ids, len(ids), self._hashes(ids, *chain_of(self._namespace, salt, public)), public)

    def _hashes(self, ids: TokenIds, namespace: int, fork: Fork | None) -> "array[int]":
        library = self._library
        if library is None:
            return array("Q", block_hashes(ids.tokens, namespace, fork))
        count = len(ids.packed) // 4
        hashes = _ZERO * (count // BLOCK_SIZE)
        block, tag = (-1, 0) if fork is None else (fork.block, int.from_bytes(fork.tag, "little"))
        library.block_hashes(ids.packed, count, namespace, block, tag, hashes.buffer_info()[0])
        return hashes

    def _namespace_of(self, salt: str | None) -> int:
        text = self._text
        return namespace_hash(model=text.model_fingerprint, tokenizer=text.tokenizer_fingerprint, salt=salt or "")
