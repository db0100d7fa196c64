"""The few numbers that a decision is judged by: what the choice had and who had more, in blocks and in seconds.

Waits are of wait.py, as believed when it was decided: for all policies alike, whatever they decide by.
"""

from array import array
from typing import NamedTuple

import numpy as np

from gateway.routing.base import Decision
from gateway.routing.candidates import Candidates, Floats, Mask
from gateway.routing.native.library import SURVEY
from gateway.routing.native.ttft import NativeTerms
from gateway.routing.wait import believed_wait_s, wait_s

_ZERO = array("d", bytes(8))


class Quickest(NamedTuple):
    place: int
    """-1: there is nobody."""
    wait_s: float


class Survey(NamedTuple):
    mine_s: float
    """Of the choice."""
    most_cached: int
    """Tokens."""
    my_cached: int
    with_most_cached: Quickest
    """Of those that have so many."""
    most_held: int
    with_most_held: Quickest
    other: Quickest
    """Of all but the choice."""


def survey(tokens: int, candidates: Candidates, place: int) -> Survey:
    """`tokens`: of the prompt. `place`: of the choice."""
    library = candidates.library
    if library is None:
        return _survey(tokens, candidates, place)
    found = _ZERO * len(SURVEY)
    library.survey(candidates.address, len(candidates.ids), tokens, place, found.buffer_info()[0])
    return _read(found)


def survey_of(tokens: int, candidates: Candidates, decision: Decision) -> Survey:
    """The same of a decision: native code has made it along with that."""
    columns = decision.columns
    found = columns.survey_of(candidates) if isinstance(columns, NativeTerms) else None
    return survey(tokens, candidates, decision.place) if found is None else _read(found)


def _read(found: "array[float]") -> Survey:
    mine_s, most_cached, my_cached, cached, cached_s, most_held, held, held_s, other, other_s = found
    return Survey(
        mine_s,
        int(most_cached),
        int(my_cached),
        Quickest(int(cached), cached_s),
        int(most_held),
        Quickest(int(held), held_s),
        Quickest(int(other), other_s),
    )


def _survey(tokens: int, candidates: Candidates, place: int) -> Survey:
    waits = believed_wait_s(tokens, candidates)
    cached, held = candidates.cached_tokens(tokens), candidates.held_tokens(tokens)
    return Survey(
        float(waits[place]),
        int(cached.max()),
        int(cached[place]),
        _quickest(waits, cached == cached.max()),
        int(held.max()),
        _quickest(waits, held == held.max()),
        _quickest(waits, np.arange(len(waits)) != place),
    )


def _quickest(waits: Floats, among: Mask) -> Quickest:
    if not among.any():
        return Quickest(-1, float("inf"))
    place = int(np.where(among, waits, np.inf).argmin())
    return Quickest(place, float(waits[place]))


def wait_with(tokens: int, candidates: Candidates, place: int, cached: int) -> float:
    """What one of them makes a prompt wait whose first `cached` tokens are in its cache."""
    library = candidates.library
    if library is not None:
        wait: float = library.wait_of(candidates.address, len(candidates.ids), tokens, place, cached)
        return wait
    return float(wait_s(tokens, candidates, np.full(len(candidates), float(cached)))[place])
