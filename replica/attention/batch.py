"""What paged attention needs to know of a step: which query row belongs where."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import torch

from replica.protocol.hashing import BLOCK_SIZE
from replica.sequence import Chunk


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


def group_by_prefix(chunks: SequenceOf[Chunk]) -> list[Chunk]:
    """Sequences that share pages side by side: paged attention reads a page once for neighbours that share it."""
    return sorted(chunks, key=lambda chunk: chunk.sequence.pages)
