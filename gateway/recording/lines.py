"""A request as a line of a trace that holds no text and nothing that can be turned back into it. Pure.

The format is Mooncake's (FAST'25), and its readers can ignore what stands beside: `timestamp` (ms since the recording
began), `input_length`, `output_length` and `hash_ids`, one for each block of 16 tokens, a last partial one included,
each for the whole prefix up to and with its block. Ids are small numbers in order of appearance, so that the hashes
stay here: with them, whoever guesses a prompt could tell whether it was asked.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from replica.protocol.hashing import BLOCK_SIZE

MAX_BLOCKS = 1 << 20
"""Blocks whose ids are remembered, 16 million tokens; 0.2 GiB when full."""
_PSEUDONYM_BYTES = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """What is recorded of a request. Times are seconds, of the gateway's clock or since `received_at`."""

    received_at: float
    duration_s: float
    tokens: int
    hashes: Sequence[int]
    """Of its whole blocks, or none where it doesn't share any."""
    output_tokens: int
    estimated: bool
    """Those weren't told, but counted in chunks of the stream."""
    session: str
    tenant: str
    predicted: int | None
    """Cached tokens that the gateway expected."""
    delivered: int | None
    ttft_s: float | None
    failed: bool


class BlockIds:
    """Hash -> small number, least recently used first out. A hash that was forgotten and comes again gets a new number:
    its blocks then look new, as they would to a cache of that many blocks."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._ids: OrderedDict[int, int] = OrderedDict()
        self._next = 0

    def __len__(self) -> int:
        return len(self._ids)

    def of(self, hashes: Sequence[int]) -> list[int]:
        ids = self._ids
        found = []
        for block in hashes:
            known = ids.get(block)
            if known is None:
                known = ids[block] = self.fresh()
            found.append(known)
        # The deepest first, so that it is forgotten first: what is left are whole prefixes.
        for block in reversed(hashes):
            ids.move_to_end(block)
        while len(ids) > self._max_blocks:
            ids.popitem(last=False)
        return found

    def fresh(self) -> int:
        """A number for a block that no other prompt has."""
        self._next += 1
        return self._next - 1


class Lines:
    """Of one file: ids and pseudonyms mean nothing beyond it."""

    def __init__(self, began_at: float, key: bytes, max_blocks: int = MAX_BLOCKS) -> None:
        """`key`: random, and known to nobody else."""
        self._began_at = began_at
        self._key = key
        self._ids = BlockIds(max_blocks)

    def line(self, entry: Entry) -> bytes:
        blocks = -(-entry.tokens // BLOCK_SIZE)
        ids = self._ids.of(entry.hashes)
        ids += [self._ids.fresh() for _ in range(blocks - len(ids))]
        fields = {
            "timestamp": max(0, round((entry.received_at - self._began_at) * 1000)),
            "input_length": entry.tokens,
            "output_length": entry.output_tokens,
            "hash_ids": ids,
            "block_size": BLOCK_SIZE,
            **dict(self._optional(entry)),
            "duration_ms": round(entry.duration_s * 1000, 1),
        }
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)

    def _optional(self, entry: Entry) -> Iterable[tuple[str, Any]]:
        if entry.session:
            yield "session_id", self._pseudonym("session", entry.session)
        if entry.tenant:
            yield "tenant_id", self._pseudonym("tenant", entry.tenant)
        if entry.predicted is not None:
            yield "cached_predicted", entry.predicted
        if entry.delivered is not None:
            yield "cached_delivered", entry.delivered
        if entry.ttft_s is not None:
            yield "ttft_ms", round(entry.ttft_s * 1000, 1)
        if entry.estimated:
            yield "output_estimated", True
        if entry.failed:
            yield "failed", True

    def _pseudonym(self, kind: str, name: str) -> str:
        data = f"{kind}:{name}".encode(errors="surrogateescape")
        return hashlib.blake2b(data, digest_size=_PSEUDONYM_BYTES, key=self._key).hexdigest()
