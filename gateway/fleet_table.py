"""The fleet's numbers, kept as they change, a row a replica: a decision copies them and collects nothing."""

from array import array
from collections.abc import Collection, Mapping
from itertools import compress
from struct import Struct

import numpy as np

from gateway.index.prefix_index import Match, Matches
from gateway.routing.candidates import ROWS, Candidates, Figures, Floats, Mask, id_hash
from gateway.routing.native.library import TABLE, Library

_AT = {name: number for number, name in enumerate(TABLE)}
_WIDTH = len(TABLE)
_COPIED = len(ROWS) - ROWS.index("waiting")
"""Columns at the beginning that candidates get as they are: the last rows of theirs."""
_write_load = Struct("=3d").pack_into
_LOAD_AT = _AT["waiting"]
assert TABLE[_LOAD_AT:][:3] == ("waiting", "decoding", "stay_s")
_write_belief = Struct("=3d").pack_into
_BELIEF_AT = _AT["trust"]
assert TABLE[_BELIEF_AT:][:3] == ("trust", "unpromised", "reuse")
_write_backlog = Struct("=6d").pack_into
_BACKLOG_AT = _AT["leases"]
assert TABLE[_BACKLOG_AT:] == ("leases", "level", "as_of", "floor", "bound", "tokens_per_s")
_SIZES_AT, _SIZES_END = _AT["size_tokens"], _AT["id_hash"]
_NO_NUMBERS = array("d", bytes(8))
_FIGURES = Struct("=3qdqd")
"""Of PICK, which is in the order of Figures."""
_NO_PLACES = array("I", bytes(4))

SLOW_START_SHARE = 1.5
"""Of the mean in flight on the others: more than that a replica that has just come isn't given. Also in pick.h."""


class FleetTable:
    def __init__(self, library: Library | None) -> None:
        """`library`: None to do without."""
        self._library = library
        self._ids: list[str] = []
        self._place: dict[str, int] = {}
        self._make_room(16)
        self._all_ids: tuple[str, ...] | None = None
        """As last asked for, until a replica comes or goes."""
        self._slots: tuple[tuple[str, ...], array[int]] | None = None
        """Names of the index's slots, as last seen, and their places here; likewise."""
        self._slots_at = 0
        self._figures = array("d", bytes(_FIGURES.size))
        self._figures_at = self._figures.buffer_info()[0]

    def write(self, replica: str, **values: float) -> None:
        place = self._place.get(replica)
        if place is None:
            place = self._add(replica)
        numbers, begin = self._numbers, place * _WIDTH
        for name, value in values.items():
            numbers[begin + _AT[name]] = value

    def write_queue(
        self,
        replica: str,
        load: tuple[float, float, float],
        backlog: tuple[float, float, float, float, float, float],
        sizes: "array[float]",
    ) -> None:
        """What each request changes, several times. `load`: waiting, decoding, stay_s. `backlog`: leases, level, as_of,
        floor, bound, tokens_per_s. `sizes`: tokens by size, then counts."""
        place = self._place.get(replica)
        if place is None:
            place = self._add(replica)
        numbers, begin = self._numbers, place * _WIDTH
        _write_load(numbers, 8 * (begin + _LOAD_AT), *load)
        _write_backlog(numbers, 8 * (begin + _BACKLOG_AT), *backlog)
        numbers[begin + _SIZES_AT : begin + _SIZES_END] = sizes

    def write_belief(self, replica: str, trust: float, unpromised: float, reuse: float) -> None:
        """What each answer changes."""
        place = self._place.get(replica)
        if place is None:
            place = self._add(replica)
        _write_belief(self._numbers, 8 * (place * _WIDTH + _BELIEF_AT), trust, unpromised, reuse)

    def remove(self, replica: str) -> None:
        """The last replica moves to its place."""
        place = self._place.pop(replica)
        last = self._ids.pop()
        if last != replica:
            self._ids[place] = last
            self._place[last] = place
            self._rows[place] = self._rows[len(self._ids)]
        self._all_ids = self._slots = None

    def choosable(
        self, now: float, frozen: bool, tokens: int, without: Collection[str], matches: Mapping[str, Match]
    ) -> Candidates | None:
        """`candidates` of those that are `open`; None where there is none."""
        found = matches if isinstance(matches, Matches) else Matches.of(matches)
        library, count = self._library, len(self._ids)
        if library is None:
            mask = self.open(now, frozen, tokens, without)
            return self.candidates(mask, found, now) if mask.any() else None
        memory = _NO_NUMBERS * (len(ROWS) * count)
        memory_at = memory.buffer_info()[0]
        tried_at = num_tried = 0
        if without:
            tried = array("I", [self._place[replica] for replica in without if replica in self._place])
            tried_at, num_tried = tried.buffer_info()
        groups_at, num_groups = found.groups.buffer_info()
        slots_at, num_slots = found.numbers.buffer_info()
        places_at = self._places_at(found.names) if num_slots else 0
        chosen = library.pick(
            self._numbers_at, count, now, frozen, tokens, tried_at, num_tried,
            groups_at, num_groups // 3, slots_at, places_at, memory_at, self._chosen_at, self._figures_at,
        )  # fmt: skip
        if not chosen:
            return None
        ids = self._all_ids if chosen == count else tuple(map(self._ids.__getitem__, self._chosen[:chosen]))
        if ids is None:
            ids = self._ids_of_all()
        return Candidates(ids, memory, library, Figures._make(_FIGURES.unpack(self._figures)), memory_at)

    def open(self, now: float, frozen: bool, tokens: int, without: Collection[str]) -> Mask:
        """Which may be chosen for a request of so many tokens, prompt and answer."""
        max_context, warm_at, leases = self._gates("max_context", "warm_at", "leases")
        mask = self.well(now, frozen)
        mask &= max_context >= tokens
        for replica in without:
            if replica in self._place:
                mask[self._place[replica]] = False
        return _slow_start(mask, warm_at > now, leases)

    def well(self, now: float, frozen: bool) -> Mask:
        """Breakers that are open are passed over where they would leave less than half of the replicas that are there:
        then something else is wrong, and the rest would break under what all are sent."""
        ready, beat_at, tripped_at, closed_until = self._gates("ready", "beat_at", "tripped_at", "closed_until")
        there: Mask = ready > 0
        if frozen:
            return there & (closed_until <= now)
        there &= beat_at > tripped_at
        mask: Mask = there & (closed_until <= now)
        return mask if 2 * np.count_nonzero(mask) >= np.count_nonzero(there) else there

    def _gates(self, *names: str) -> list[Floats]:
        return [self._rows[: len(self._ids), _AT[name]] for name in names]

    def names(self, mask: Mask) -> tuple[str, ...]:
        return tuple(compress(self._ids, mask.tolist()))

    def candidates(self, mask: Mask, matches: Mapping[str, Match], now: float) -> Candidates:
        ids = self._ids_of_all() if mask.all() else tuple(compress(self._ids, mask.tolist()))
        columns = self._rows[: len(self._ids)][mask].T
        made = Candidates(ids, _NO_NUMBERS * (len(ROWS) * len(ids)), self._library)
        numbers = made.numbers
        numbers[-_COPIED:] = columns[:_COPIED]
        level, as_of, floor, bound, tokens_per_s = columns[_AT["level"] :]
        numbers[0] = np.minimum(np.maximum(floor, level - tokens_per_s * (now - as_of)), bound)
        numbers[1:3] = self._blocks(matches if isinstance(matches, Matches) else Matches.of(matches))[:, mask]
        return made

    def _blocks(self, matches: Matches) -> Floats:
        """Held, and held or expected, by place."""
        # Slots of replicas that aren't here write behind the last place.
        blocks = np.zeros((2, len(self._ids) + 1))
        if matches:
            held, matched, ends = np.frombuffer(matches.groups, np.uint32).reshape(-1, 3).T
            counts = ends.copy()
            counts[1:] -= ends[:-1]
            places = np.frombuffer(self._places(matches.names), np.int32)[np.frombuffer(matches.numbers, np.uint16)]
            blocks[0, places] = held.repeat(counts)
            blocks[1, places] = matched.repeat(counts)
        return blocks[:, :-1]

    def _places(self, names: tuple[str, ...]) -> "array[int]":
        if self._slots is None or self._slots[0] is not names:
            self._slots = names, array("i", [self._place.get(name, -1) for name in names])
            self._slots_at = self._slots[1].buffer_info()[0]
        return self._slots[1]

    def _places_at(self, names: tuple[str, ...]) -> int:
        if self._slots is None or self._slots[0] is not names:
            self._places(names)
        return self._slots_at

    def _ids_of_all(self) -> tuple[str, ...]:
        if self._all_ids is None:
            self._all_ids = tuple(self._ids)
        return self._all_ids

    def _add(self, replica: str) -> int:
        place = len(self._ids)
        if place == len(self._rows):
            old = self._rows
            self._make_room(2 * place)
            self._rows[:place] = old
        self._ids.append(replica)
        self._place[replica] = place
        self._rows[place] = 0.0
        self._rows[place, _AT["id_hash"]] = np.uint64(id_hash(replica)).view(np.float64)
        self._all_ids = self._slots = None
        return place

    def _make_room(self, replicas: int) -> None:
        self._numbers = _NO_NUMBERS * (replicas * _WIDTH)
        self._numbers_at = self._numbers.buffer_info()[0]
        self._rows: Floats = np.frombuffer(self._numbers).reshape(replicas, _WIDTH)
        # Of a choice under way: their places, and the other way round.
        self._chosen = _NO_PLACES * (2 * replicas)
        self._chosen_at = self._chosen.buffer_info()[0]


def _slow_start(mask: Mask, cold: Mask, leases: Floats) -> Mask:
    """Without the cold ones that have their share in flight already. Of a fleet that is all cold none is held back."""
    if not cold.any():
        return mask
    settled = mask & ~cold
    if not settled.any():
        return mask
    share = max(1.0, SLOW_START_SHARE * float(leases[settled].mean()))
    return mask & ~(cold & (leases + 1 > share))
