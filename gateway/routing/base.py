"""What a routing policy sees and what it answers. Pure: no I/O, no clock, no randomness."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import xxhash

from replica.protocol.hashing import BLOCK_SIZE
from replica.protocol.records import CostModel


@dataclass(frozen=True, slots=True)
class RouteRequest:
    tokens: int
    """Prompt length."""
    hashes: Sequence[int]
    """Chained hashes of the prompt's whole blocks."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica that may take a request, as the gateway knows it at the moment of the decision."""

    id: str
    epoch: str
    queue_tokens: int
    """Uncached prompt tokens ahead of a new request, dead-reckoned between load reports."""
    decoding: int
    """Sequences that are being decoded."""
    cost: CostModel
    free_blocks: int
    total_blocks: int
    max_context: int
    trust: float
    """Delivered over predicted cached tokens, of late; 1 where nothing is known."""
    reuse: float
    """Share of this replica's prompt tokens that its cache has been serving."""
    matched_blocks: int = 0
    """Leading blocks of this prompt that it holds or is about to compute."""

    def cached_tokens(self, request: RouteRequest) -> int:
        """Prompt tokens its cache should give: whole blocks, and one token is left to compute for the logits."""
        return BLOCK_SIZE * max(0, min(self.matched_blocks, (request.tokens - 1) // BLOCK_SIZE))


@dataclass(frozen=True, slots=True)
class Decision:
    choice: str
    cached_tokens: int
    """Predicted for the choice, before any discount for trust."""
    policy: str
    terms: Mapping[str, Mapping[str, float]]
    """Of every candidate; names end in `_s` for seconds, the others are tokens or plain numbers."""


class Policy(Protocol):
    """Chooses a replica. May keep state of its own, which only `choose` changes."""

    name: str

    def choose(self, request: RouteRequest, candidates: Sequence[ReplicaView], now: float) -> Decision:
        """`candidates` is not empty, and its order must not matter. Explains every candidate."""
        ...


def rendezvous(key: int, candidates: Sequence[ReplicaView]) -> ReplicaView:
    """Highest random weight: gateways that see the same candidates pick the same one, whatever their order."""
    packed = key.to_bytes(8, "little")
    return max(candidates, key=lambda view: (xxhash.xxh3_64_intdigest(packed + view.id.encode()), view.id))


def last_hash(request: RouteRequest) -> int:
    """A key that differs between prompts unless they are equal block by block."""
    return request.hashes[-1] if request.hashes else 0


def branch_hash(request: RouteRequest, candidates: Sequence[ReplicaView]) -> int:
    """A key that prompts over the same context share, and others don't.

    The first block is no such key, since all prompts begin with one system prompt; the last one neither, as each
    question differs. So: the middle of the prompt, or the first block that no candidate has where that lies deeper.
    """
    if not request.hashes:
        return 0
    deepest = max(view.matched_blocks for view in candidates)
    return request.hashes[min(max(deepest, len(request.hashes) // 2), len(request.hashes) - 1)]
