"""A request inside the engine, and the batch of one step."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from replica.protocol.hashing import BLOCK_SIZE, Fork, block_hashes, pack_tokens

if TYPE_CHECKING:
    from replica.cache.radix import Node

_BLOCK_BYTES = 4 * BLOCK_SIZE
_PLACEHOLDER = 0


class SequenceState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"
    """The constraint gave up half-way, or the model's logits are of no use: what was generated is no whole answer."""


class ConstraintError(Exception):
    """A constraint can't go on, for one sequence; the message says why."""


class TokenConstraint(Protocol):
    """Which tokens may come next: the state of a grammar, of one sequence. Used from the engine's thread."""

    def bitmask(self) -> bytes:
        """Bit t % 8 of byte t // 8 is set where token t may come next; at the end those are the model's stop tokens.
        At least one is set."""
        ...

    def accept(self, token: int) -> None:
        """`token` was sampled, and is no stop token. Raises ConstraintError."""
        ...

    @property
    def is_finished(self) -> bool:
        """Nothing may follow but the end."""
        ...


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the model's own probabilities: before temperature, penalties and constraints."""

    logprob: float
    top: tuple[tuple[int, float], ...]
    """Token ids and logprobs of the likeliest, in order."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    """Both count tokens of the answer alone, as OpenAI defines them."""
    repetition_penalty: float = 1.0
    """Counts tokens of prompt and answer (Keskar et al. 2019)."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    logprobs: int | None = None
    """How many of the likeliest tokens to report beside each sampled one; None: no logprobs at all."""

    def __post_init__(self) -> None:
        assert self.max_tokens >= 1
        assert self.temperature >= 0
        assert 0 < self.top_p <= 1
        assert 0 <= self.min_p <= 1
        assert self.top_k >= 0
        assert self.repetition_penalty > 0

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0

    @property
    def changes_logits(self) -> bool:
        """Before temperature: most requests don't."""
        return self.min_tokens > 0 or bool(self.logit_bias) or self.has_penalties


@dataclass(eq=False, slots=True)
class Sequence:
    """Prompt and answer of one request, and how far their KV is computed.

    `pages[i]` holds the KV of tokens [16·i, 16·i + 16). The first `num_tree_pages` of them belong to the tree, which
    the sequence keeps locked down to `node`; the rest are its own.
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    namespace: int
    priority: int = 0
    """Lower goes first."""
    fork: Fork | None = None
    """Where its blocks become a tenant's own, if they didn't begin so."""
    constraint: TokenConstraint | None = None
    wants_prompt_logprobs: bool = False
    """Until they are all there nothing is taken from the cache, which holds no logits."""
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    """One for each prompt token by the time of the first output; None for the first, which follows nothing."""
    tokens: list[int] = field(default_factory=list)
    num_pending: int = 0
    """1: the last of `tokens` is a placeholder for one that is still on the device; see replica/device/launch.py."""
    packed: bytearray = field(default_factory=bytearray)
    hashes: list[int] = field(default_factory=list)
    """Of the prompt's whole blocks."""
    state: SequenceState = SequenceState.WAITING
    num_computed: int = 0
    num_cached: int = 0
    """Prompt tokens found in the cache when first admitted."""
    pages: list[int] = field(default_factory=list)
    num_tree_pages: int = 0
    node: "Node | None" = None
    match_hint: "Node | None" = None
    """Where the cache last found the longest prefix held to end; it looks on from there."""
    claimed: list[int] = field(default_factory=list)
    """Hashes of prompt blocks that this sequence has undertaken to compute; see Scheduler."""
    num_preemptions: int = 0
    scheduled_at: float | None = None
    """When the first step that computes for it began, by the engine's clock."""
    arrival: int = 0
    """The how manieth the scheduler was given, from 1; 0: none yet."""
    overtaken_tokens: int = 0
    """Of those that came later and yet were admitted before this one was prefilled; see replica/urgency.py."""

    def __post_init__(self) -> None:
        assert self.prompt, "a prompt has at least one token"
        self.tokens = list(self.prompt)
        self.packed = bytearray(pack_tokens(self.prompt))
        self.hashes = block_hashes(self.prompt, self.namespace, self.fork)

    @property
    def num_output(self) -> int:
        """Tokens of the answer that are known."""
        return len(self.tokens) - len(self.prompt) - self.num_pending

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        return self.num_uncomputed == 1 and len(self.tokens) > len(self.prompt)

    @property
    def is_full(self) -> bool:
        """The token on the device is the last one that it may have."""
        return self.num_pending > 0 and self.num_output + self.num_pending >= self.params.max_tokens

    @property
    def forbids_end(self) -> bool:
        """The next token may be none that ends the answer."""
        params = self.params
        return self.num_output + self.num_pending < params.min_tokens and bool(params.stop_token_ids)

    @property
    def lacks_prompt_logprobs(self) -> bool:
        return self.wants_prompt_logprobs and len(self.prompt_logprobs) < len(self.prompt)

    def block(self, index: int) -> bytes:
        """Packed tokens of a whole block, and the tag where it is the first of a tenant's own: the exact key of the
        tree."""
        tokens = bytes(self.packed[index * _BLOCK_BYTES : (index + 1) * _BLOCK_BYTES])
        return tokens + self.fork.tag if self.fork is not None and self.fork.block == index else tokens

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.packed += pack_tokens([token])

    def expect(self) -> None:
        """A token that the device knows alone."""
        assert self.num_pending == 0
        self.append(_PLACEHOLDER)
        self.num_pending = 1

    def withdraw(self) -> None:
        """The placeholder, since the token is known or won't be wanted."""
        assert self.num_pending == 1
        self.num_pending = 0
        self.tokens.pop()
        del self.packed[-4:]

    def finish_reason(self) -> FinishReason | None:
        """After a sampled token was appended."""
        if self.tokens[-1] in self.params.stop_token_ids:
            return FinishReason.STOP
        if self.constraint is not None and self.constraint.is_finished:
            return FinishReason.STOP
        if self.num_output >= self.params.max_tokens:
            return FinishReason.LENGTH
        return None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, start + count) of a sequence, to be computed in one step."""

    sequence: Sequence
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def samples(self) -> bool:
        """The chunk reaches the last token known, so its logits give the next one."""
        return self.end == len(self.sequence.tokens)


@dataclass(frozen=True, slots=True)
class Batch:
    chunks: tuple[Chunk, ...]
    preempted: tuple[Sequence, ...] = ()
    num_deferred: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(chunk.count for chunk in self.chunks)
