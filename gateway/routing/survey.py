"""The few numbers that a decision is judged by: what the choice had and who had more, in blocks and in seconds.

Waits are of wait.py, as believed when it was decided: for all policies alike, whatever they decide by.
"""

from array import array
from typing import NamedTuple

import numpy as np

from gateway.routing.base import Decision
from gateway.routing.candidates import Candidates, Floats, Mask
from gateway.routing.native.library import SURVEY, SURVEY_FORMAT
from gateway.routing.native.ttft import NativeTerms
from gateway.routing.wait import believed_wait_s, wait_s

_ZERO = array("d", bytes(8))


class Quickest(NamedTuple):
    place: int
    """-1: there is nobody."""
    wait_s: float


class Survey(NamedTuple):
    """In the order of SURVEY in native/library.py."""

    mine_s: float
    """Of the choice."""
    my_credited: float
    """Tokens of its cache that are counted on for that."""
    most_cached: int
    """Tokens."""
    my_cached: int
    with_most_cached: int
    """The place of the quickest of those that have so many."""
    with_most_cached_s: float
    most_held: int
    with_most_held: int
    with_most_held_s: float
    other: int
    """Of all but the choice."""
    other_s: float

    @property
    def quickest_with_most_cached(self) -> Quickest:
        return Quickest(self.with_most_cached, self.with_most_cached_s)

    @property
    def quickest_with_most_held(self) -> Quickest:
        return Quickest(self.with_most_held, self.with_most_held_s)

    @property
    def quickest_other(self) -> Quickest:
        return Quickest(self.other, self.other_s)


def survey(tokens: int, candidates: Candidates, place: int) -> Survey:
    """`tokens`: of the prompt. `place`: of the choice."""
    library = candidates.library
    if library is None:
        return _survey(tokens, candidates, place)
    found = _ZERO * len(SURVEY)
    library.survey(candidates.address, len(candidates.ids), tokens, place, found.buffer_info()[0])
    return Survey._make(SURVEY_FORMAT.unpack_from(found))


def survey_of(tokens: int, candidates: Candidates, decision: Decision) -> Survey:
    """The same of a decision: native code has made it along with that."""
    columns = decision.columns
    found = columns.survey_of(candidates) if isinstance(columns, NativeTerms) else None
    return survey(tokens, candidates, decision.place) if found is None else Survey._make(found)


def _survey(tokens: int, candidates: Candidates, place: int) -> Survey:
    waits = believed_wait_s(tokens, candidates)
    cached, held = candidates.cached_tokens(tokens), candidates.held_tokens(tokens)
    return Survey(
        float(waits[place]),
        float(candidates.credited_tokens(tokens)[place]),
        int(cached.max()),
        int(cached[place]),
        *_quickest(waits, cached == cached.max()),
        int(held.max()),
        *_quickest(waits, held == held.max()),
        *_quickest(waits, np.arange(len(waits)) != place),
    )


def _quickest(waits: Floats, among: Mask) -> Quickest:
    if not among.any():
        return Quickest(-1, float("inf"))
    place = int(np.where(among, waits, np.inf).argmin())
    return Quickest(place, float(waits[place]))


def wait_with(tokens: int, candidates: Candidates, place: int, cached: float) -> float:
    """What one of them makes a prompt wait whose first `cached` tokens come from its cache."""
    library = candidates.library
    if library is not None:
        wait: float = library.wait_of(candidates.address, len(candidates.ids), tokens, place, cached)
        return wait
    return float(wait_s(tokens, candidates, np.full(len(candidates), float(cached)))[place])
