"""What paged attention needs to know of a step: which query row belongs where."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch

import kernels
from replica.protocol.hashing import BLOCK_SIZE
from replica.sequence import Chunk

KV = TypeVar("KV")
"""One layer's KV cache."""
_KVIn = TypeVar("_KVIn", contravariant=True)
_KVOut = TypeVar("_KVOut", covariant=True)


class Attention(Protocol[_KVIn]):
    """What a decoder needs of a step: attention, wherever and however it is computed."""

    def attend(
        self,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        kv: _KVIn,
        num_q_heads: int,
        scale: float,
        window: int,
    ) -> torch.Tensor:
        """Rotates q and k of qkv [rows, (Hq + 2 Hkv) D], writes k and v, attends: [rows, Hq, D]."""
        ...


class Layers(Protocol[_KVOut]):
    """A KV pool as a decoder sees it."""

    @property
    def layers(self) -> tuple[_KVOut, ...]: ...


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """All int32. Row t computes the token at `positions[t]` of sequence `row_seq[t]` and attends to the first
    `row_len[t]` tokens of it, itself included; its K and V go to slot `slots[t]` = page · 16 + offset."""

    positions: torch.Tensor
    slots: torch.Tensor
    row_seq: torch.Tensor
    row_len: torch.Tensor
    page_table: torch.Tensor
    """[sequences, max pages]; a row is padded with page 0, which is never read past `row_len`."""

    @classmethod
    def build(cls, chunks: SequenceOf[Chunk]) -> "AttentionBatch":
        counts = np.array([chunk.count for chunk in chunks], dtype=np.int32)
        starts = np.array([chunk.start for chunk in chunks], dtype=np.int32)
        widths = [-(-chunk.end // BLOCK_SIZE) for chunk in chunks]
        page_table = np.zeros((len(chunks), max(widths)), dtype=np.int32)
        for row, (chunk, width) in enumerate(zip(chunks, widths, strict=True)):
            page_table[row, :width] = chunk.sequence.pages[:width]
        row_seq = np.repeat(np.arange(len(chunks), dtype=np.int32), counts)
        # Counts from a chunk's start anew in each chunk: rows, less the rows before the chunk.
        before = np.cumsum(counts, dtype=np.int32) - counts
        positions = np.arange(len(row_seq), dtype=np.int32) + np.repeat(starts - before, counts)
        slots = page_table[row_seq, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        return cls(
            positions=torch.from_numpy(positions),
            slots=torch.from_numpy(slots),
            row_seq=torch.from_numpy(row_seq),
            row_len=torch.from_numpy(positions + 1),
            page_table=torch.from_numpy(page_table),
        )

    def attend(
        self,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        kv: kernels.KVPages,
        num_q_heads: int,
        scale: float,
        window: int,
    ) -> torch.Tensor:
        q = kernels.rope_write_kv(qkv, cos, sin, self.positions, self.slots, kv, num_q_heads)
        return kernels.paged_attention(q, kv, self.page_table, self.row_seq, self.row_len, scale, window)


def group_by_prefix(chunks: SequenceOf[Chunk]) -> list[Chunk]:
    """Sequences that share pages side by side: paged attention reads a page once for neighbours that share it."""
    return sorted(chunks, key=lambda chunk: chunk.sequence.pages)
