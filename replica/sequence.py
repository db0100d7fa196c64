"""A request inside the engine, and the batch of one step."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from replica.protocol.hashing import BLOCK_SIZE, block_hashes, pack_tokens

if TYPE_CHECKING:
    from replica.cache.radix import Node

_BLOCK_BYTES = 4 * BLOCK_SIZE


class SequenceState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0

    def __post_init__(self) -> None:
        assert self.max_tokens >= 1
        assert self.temperature >= 0
        assert 0 < self.top_p <= 1


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
    tokens: list[int] = field(default_factory=list)
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
    claimed: list[int] = field(default_factory=list)
    """Hashes of prompt blocks that this sequence has undertaken to compute; see Scheduler."""
    num_preemptions: int = 0
    overtaken_tokens: int = 0
    """Tokens of younger sequences that were admitted while this one still had tokens to prefill."""

    def __post_init__(self) -> None:
        assert self.prompt, "a prompt has at least one token"
        self.tokens = list(self.prompt)
        self.packed = bytearray(pack_tokens(self.prompt))
        self.hashes = block_hashes(self.prompt, self.namespace)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        return self.num_output > 0 and self.num_uncomputed == 1

    def block(self, index: int) -> bytes:
        """Packed tokens of a whole block: the exact key of the tree."""
        return bytes(self.packed[index * _BLOCK_BYTES : (index + 1) * _BLOCK_BYTES])

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.packed += pack_tokens([token])

    def finish_reason(self) -> FinishReason | None:
        """After a sampled token was appended."""
        if self.tokens[-1] in self.params.stop_token_ids:
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
