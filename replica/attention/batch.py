"""What paged attention needs to know of a step: which query row belongs where."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

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
        positions: list[int] = []
        slots: list[int] = []
        row_seq: list[int] = []
        for index, chunk in enumerate(chunks):
            pages = chunk.sequence.pages
            for position in range(chunk.start, chunk.end):
                positions.append(position)
                slots.append(pages[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE)
                row_seq.append(index)
        width = max(-(-chunk.end // BLOCK_SIZE) for chunk in chunks)
        table = [(chunk.sequence.pages[:width] + [0] * width)[:width] for chunk in chunks]
        position_rows = torch.tensor(positions, dtype=torch.int32)
        return cls(
            positions=position_rows,
            slots=torch.tensor(slots, dtype=torch.int32),
            row_seq=torch.tensor(row_seq, dtype=torch.int32),
            row_len=position_rows + 1,
            page_table=torch.tensor(table, dtype=torch.int32),
        )


def group_by_prefix(chunks: SequenceOf[Chunk]) -> list[Chunk]:
    """Sequences that share pages side by side: paged attention reads a page once for neighbours that share it."""
    return sorted(chunks, key=lambda chunk: chunk.sequence.pages)
