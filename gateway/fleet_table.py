"""The fleet's numbers in columns, kept as they change: a decision copies them and collects nothing."""

from collections.abc import Collection, Mapping
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.index.prefix_index import Match, Matches
from gateway.routing.candidates import COLUMNS, SIZES, Candidates, Floats, Mask, id_hash

_GATES = ("ready", "max_context", "beat_at", "tripped_at", "closed_until")
_BACKLOG = ("level", "as_of", "floor", "bound", "tokens_per_s")
_AT = {name: number for number, name in enumerate((*COLUMNS, *_GATES, *_BACKLOG))}
"""What policies see, what says whether a replica may be chosen (see Fleet), and its queue (see Backlog)."""


class FleetTable:
    def __init__(self) -> None:
        self._ids: list[str] = []
        self._place: dict[str, int] = {}
        self._columns = np.zeros((len(_AT), 16))
        self._sizes = np.zeros((2, SIZES, 16))
        self._id_hashes = np.zeros(16, np.uint64)
        self._all_ids: tuple[str, ...] | None = None
        """As last asked for, until a replica comes or goes."""
        self._slots: tuple[tuple[str, ...], NDArray[np.intp]] | None = None
        """Names of the index's slots, as last seen, and their places here; likewise."""

    def write(self, replica: str, **values: float) -> None:
        place = self._place.get(replica)
        if place is None:
            place = self._add(replica)
        for name, value in values.items():
            self._columns[_AT[name], place] = value

    def write_sizes(self, replica: str, tokens: Floats, counts: Floats) -> None:
        """Of a replica that was written before."""
        place = self._place[replica]
        self._sizes[0, :, place] = tokens
        self._sizes[1, :, place] = counts

    def remove(self, replica: str) -> None:
        """The last replica moves to its place."""
        place = self._place.pop(replica)
        last = self._ids.pop()
        if last != replica:
            self._ids[place] = last
            self._place[last] = place
            self._columns[:, place] = self._columns[:, len(self._ids)]
            self._sizes[:, :, place] = self._sizes[:, :, len(self._ids)]
            self._id_hashes[place] = self._id_hashes[len(self._ids)]
        self._all_ids = self._slots = None

    def open(self, now: float, frozen: bool, tokens: int, without: Collection[str]) -> Mask:
        """Which may be chosen for a request of so many tokens, prompt and answer."""
        gates = self._columns[len(COLUMNS) : len(COLUMNS) + len(_GATES), : len(self._ids)]
        ready, max_context, beat_at, tripped_at, closed_until = gates
        mask: Mask = (ready > 0) & (closed_until <= now) & (max_context >= tokens)
        if not frozen:
            mask &= beat_at > tripped_at
        for replica in without:
            if replica in self._place:
                mask[self._place[replica]] = False
        return mask

    def candidates(self, mask: Mask, matches: Mapping[str, Match], now: float) -> Candidates:
        count = len(self._ids)
        held, matched = self._blocks(matches if isinstance(matches, Matches) else Matches.of(matches))
        parts: list[NDArray[Any]] = [
            self._columns[:, :count],
            self._sizes[:, :, :count],
            self._id_hashes[:count],
            held,
            matched,
        ]
        if mask.all():
            if self._all_ids is None:
                self._all_ids = tuple(self._ids)
            ids = self._all_ids
            columns, sizes, id_hashes, held, matched = (part.copy() for part in parts)
        else:
            ids = tuple(compress(self._ids, mask.tolist()))
            columns, sizes, id_hashes, held, matched = (part[..., mask] for part in parts)
        level, as_of, floor, bound, tokens_per_s = columns[-len(_BACKLOG) :]
        return Candidates(
            ids=ids,
            id_hash=id_hashes,
            queue_tokens=np.minimum(np.maximum(floor, level - tokens_per_s * (now - as_of)), bound),
            size_tokens=sizes[0],
            size_counts=sizes[1],
            held_blocks=held,
            matched_blocks=matched,
            **dict(zip(COLUMNS, columns, strict=False)),
        )

    def _blocks(self, matches: Matches) -> tuple[Floats, Floats]:
        """Held, and held or expected, by place."""
        # Slots of replicas that aren't here write behind the last place.
        blocks = np.zeros((2, len(self._ids) + 1))
        if matches:
            held, matched, ends = np.frombuffer(matches.groups, np.uint32).reshape(-1, 3).T
            counts = ends.copy()
            counts[1:] -= ends[:-1]
            places = self._places(matches.names)[np.frombuffer(matches.numbers, np.uint16)]
            blocks[0, places] = held.repeat(counts)
            blocks[1, places] = matched.repeat(counts)
        return blocks[0, :-1], blocks[1, :-1]

    def _places(self, names: tuple[str, ...]) -> NDArray[np.intp]:
        if self._slots is None or self._slots[0] is not names:
            self._slots = names, np.array([self._place.get(name, -1) for name in names], np.intp)
        return self._slots[1]

    def _add(self, replica: str) -> int:
        place = len(self._ids)
        if place == self._columns.shape[1]:
            self._columns = np.concatenate([self._columns, np.zeros_like(self._columns)], axis=1)
            self._sizes = np.concatenate([self._sizes, np.zeros_like(self._sizes)], axis=2)
            self._id_hashes = np.concatenate([self._id_hashes, np.zeros_like(self._id_hashes)])
        self._ids.append(replica)
        self._place[replica] = place
        self._columns[:, place] = 0.0
        self._sizes[:, :, place] = 0.0
        self._id_hashes[place] = id_hash(replica)
        self._all_ids = self._slots = None
        return place
