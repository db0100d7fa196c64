"""What a step computes, as arrays: all that a device, or another rank, must be told. Pure."""

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replica.device.groups import group_prefixes
from replica.device.launch import needs_host
from replica.device.scored import scored_parts
from replica.protocol.hashing import BLOCK_SIZE
from replica.sampler import uniform
from replica.sequence import Chunk, Sequence

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Draws:
    """How the sampled rows are drawn; see `kernels.draw`."""

    temperature: NDArray[np.float32]
    top_k: Ints
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    points: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """T tokens of S sequences, R of which get a next token. Sequences with one token to compute come first
    (`num_decodes`), a row each; those with more follow."""

    tokens: Ints
    """[T]; 0 where `take` says where the id is."""
    take: Ints
    """[T]: for a token that is still on the device its place among those that the previous step sampled, else -1."""
    positions: Ints
    slots: Ints
    """[T]: page · 16 + offset."""
    page_table: Ints
    """[S, pages], padded with page 0."""
    lens: Ints
    """[S]: tokens that the sequence's last row of this step sees, itself included."""
    query_start: Ints
    """[S - num_decodes + 1]: the rows of the others, counted from the first of them."""
    num_decodes: int
    max_query: int
    """Rows of the longest of the others."""
    rows: Ints
    """[R]: whose logits are sampled, in ascending order."""
    draws: Draws | None
    """None: the likeliest is taken of each."""
    on_host: Ints
    """Which of the R are sampled by the host, since it alone knows how: their logits are copied."""
    group_start: Ints
    group_pages: Ints
    """Decodes that begin with the same pages; see `PrefixGroups`. Empty where it wouldn't pay."""
    scored: NDArray[np.int32]
    """[K, 2]: ranges of rows of which the logits are wanted as well; see replica/device/scored.py."""

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def is_decode(self) -> bool:
        return self.num_decodes == len(self.tokens)


def in_order(chunks: SequenceOf[Chunk]) -> list[Chunk]:
    """Decodes first, and neighbours share as many pages as can be."""
    return sorted(chunks, key=lambda chunk: (chunk.count > 1, chunk.sequence.pages))


def sampled_of(chunks: SequenceOf[Chunk]) -> list[Sequence]:
    """Whose next token a step samples, in the order of `StepPlan.rows`."""
    return [chunk.sequence for chunk in chunks if chunk.samples]


def plan(chunks: SequenceOf[Chunk], previous: Mapping[Sequence, int], cascade: bool = True) -> StepPlan:
    """Of chunks in order (`in_order`). `previous` holds for each sequence the place of the token that the previous step
    sampled for it; it is asked for those whose last token the host doesn't know yet (`num_pending`)."""
    counts = np.fromiter((chunk.count for chunk in chunks), np.int32, len(chunks))
    starts = np.fromiter((chunk.start for chunk in chunks), np.int32, len(chunks))
    num_decodes = int((counts == 1).sum())
    page_table = _page_table(chunks)
    row_seq = np.repeat(np.arange(len(chunks), dtype=np.int32), counts)
    ends = np.cumsum(counts, dtype=np.int32)
    positions = np.arange(len(row_seq), dtype=np.int32) + np.repeat(starts - (ends - counts), counts)
    tokens = np.fromiter(
        chain.from_iterable(chunk.sequence.tokens[chunk.start : chunk.end] for chunk in chunks), np.int32, len(row_seq)
    )
    take = np.full(len(row_seq), -1, np.int32)
    for chunk, end in zip(chunks, ends.tolist(), strict=True):
        if chunk.sequence.num_pending and chunk.samples:
            tokens[end - 1], take[end - 1] = 0, previous[chunk.sequence]
    lens = starts + counts
    group_start, group_pages = group_prefixes(page_table[:num_decodes], lens[:num_decodes]) if cascade else _no_groups()
    sequences = sampled_of(chunks)
    return StepPlan(
        tokens=tokens,
        take=take,
        positions=positions,
        slots=page_table[row_seq, positions // BLOCK_SIZE] * np.int32(BLOCK_SIZE) + positions % np.int32(BLOCK_SIZE),
        page_table=page_table,
        lens=lens,
        query_start=np.concatenate(([0], np.cumsum(counts[num_decodes:]))).astype(np.int32),
        num_decodes=num_decodes,
        max_query=int(counts.max()),
        rows=ends[np.fromiter((chunk.samples for chunk in chunks), np.bool_, len(chunks))] - np.int32(1),
        draws=_draws(sequences),
        on_host=np.array([row for row, sequence in enumerate(sequences) if needs_host(sequence)], np.int32),
        group_start=group_start,
        group_pages=group_pages,
        scored=np.array([part.rows for part in scored_parts(chunks)], np.int32).reshape(-1, 2),
    )


def _page_table(chunks: SequenceOf[Chunk]) -> Ints:
    widths = np.fromiter((-(-chunk.end // BLOCK_SIZE) for chunk in chunks), np.int32, len(chunks))
    table = np.zeros((len(chunks), int(widths.max())), np.int32)
    # In one piece: row by row it takes a fifth longer, and most of a plan's time is spent here (30 ns a page).
    pages = chain.from_iterable(
        chunk.sequence.pages[:width] for chunk, width in zip(chunks, widths.tolist(), strict=True)
    )
    table[np.arange(table.shape[1]) < widths[:, None]] = np.fromiter(pages, np.int32, int(widths.sum()))
    return table


def _draws(sequences: SequenceOf[Sequence]) -> Draws | None:
    params = [sequence.params for sequence in sequences]
    if not any(one.temperature for one in params):
        return None
    return Draws(
        temperature=_array((one.temperature for one in params), np.float32),
        top_k=_array((one.top_k for one in params), np.int32),
        top_p=_array((one.top_p for one in params), np.float32),
        min_p=_array((one.min_p for one in params), np.float32),
        points=_array((uniform(one.params.seed, len(one.tokens)) for one in sequences), np.float64),
    )


def _array(values: Any, dtype: Any) -> Any:
    return np.fromiter(values, dtype)


def _no_groups() -> tuple[Ints, Ints]:
    return np.zeros(1, np.int32), np.zeros(0, np.int32)
