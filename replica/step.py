"""What a step of an engine computes and gives, whichever engine it is."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from replica.cache.manager import CacheEvents
from replica.sequence import Batch, Chunk, FinishReason, Sequence, TokenLogprobs


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step computed; the terms of `CostModel`."""

    tokens: int
    """Prompt tokens."""
    attention: float
    """Σ u·(n - u/2) over prefill chunks."""
    decoding: int

    def __add__(self, other: "StepWork") -> "StepWork":
        return StepWork(self.tokens + other.tokens, self.attention + other.attention, self.decoding + other.decoding)


UNUSABLE_TOKEN = -1
"""Sampled where logits hold NaN or +inf, or nothing but -inf."""


@dataclass(frozen=True, slots=True)
class Sampled:
    token: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """A new token of a sequence; the last one carries the reason. Where that is ERROR there may be none: it is
    UNUSABLE_TOKEN then."""

    sequence: Sequence
    token: int
    finish_reason: FinishReason | None
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    batch: Batch
    work: StepWork
    seconds: float
    outputs: tuple[Output, ...]
    events: CacheEvents = field(default_factory=lambda: CacheEvents((), ()))


def work_of(chunks: Iterable[Chunk]) -> StepWork:
    """Before the step's tokens are appended."""
    tokens, attention, decoding = 0, 0.0, 0
    for chunk in chunks:
        if chunk.sequence.is_decoding:
            decoding += 1
        else:
            tokens += chunk.count
            attention += chunk.count * (chunk.end - chunk.count / 2)
    return StepWork(tokens, attention, decoding)
