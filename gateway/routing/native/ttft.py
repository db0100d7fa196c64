"""Policy `ttft` in one call: see ../ttft.py, which says what is computed and computes it in numpy as well."""

from array import array
from collections.abc import Iterator, Mapping

import numpy as np

from gateway.routing.base import Decision, Policy, RouteRequest, branch_hash
from gateway.routing.candidates import Candidates, Floats
from gateway.routing.native.library import CHOICE, CHOICE_FORMAT, SURVEY, SURVEY_FORMAT, TTFT_TERMS, Library

_AT = {name: row for row, name in enumerate(TTFT_TERMS)}
_OF_CANDIDATES = ("matched_blocks", "trust", "unpromised")
_NAMES = (*(name for name in TTFT_TERMS if name != "cost"), *_OF_CANDIDATES)
_ZERO = array("d", bytes(8))
_TERMS, _SURVEY, _CHOICE = len(TTFT_TERMS), len(SURVEY), len(CHOICE)


class NativeTerms(Mapping[str, Floats]):
    """A decision's columns, as native code wrote them."""

    __slots__ = ("_candidates", "_library", "_memory", "_memory_at", "predicted_s")

    def __init__(
        self, memory: "array[float]", memory_at: int, candidates: Candidates, library: Library, predicted_s: float
    ) -> None:
        """`memory_at`: its address."""
        self._memory = memory
        self._memory_at = memory_at
        self._candidates = candidates
        self._library = library
        self.predicted_s = predicted_s
        """Until the first token, at the choice."""

    @property
    def _terms(self) -> Floats:
        return np.ndarray((len(TTFT_TERMS), len(self._candidates)), np.float64, self._memory)

    def survey_of(self, candidates: Candidates) -> tuple[float, ...] | None:
        """The numbers of a survey of the choice, if these are the candidates that it was of."""
        if candidates is not self._candidates:
            return None
        return SURVEY_FORMAT.unpack_from(self._memory, 8 * _TERMS * len(candidates.ids))

    def count_busy(self, shares: "array[float]", weight: float) -> None:
        """Who has a queue moves `shares` towards 1, by 1 in `weight`; the others towards 0."""
        self._library.ttft_placed(shares.buffer_info()[0], self._memory_at, len(shares), weight)

    def __getitem__(self, name: str) -> Floats:
        if name in _OF_CANDIDATES:
            column: Floats = getattr(self._candidates, name)
        else:
            column = self._terms[_AT[name]]
        return column

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


def native_choice(
    policy: Policy,
    request: RouteRequest,
    candidates: Candidates,
    future_uses: float,
    shares: "array[float]",
) -> Decision:
    """`shares`: how busy each is."""
    library, ids = candidates.library, candidates.ids
    assert library is not None
    count = len(ids)
    end = _TERMS * count + _SURVEY
    memory = _ZERO * (end + _CHOICE)
    memory_at = memory.buffer_info()[0]
    place = library.ttft(
        candidates.address, count, request.tokens, future_uses, len(request.hashes),
        shares.buffer_info()[0], branch_hash(request, candidates), memory_at,
    )  # fmt: skip
    cached, held, predicted_s = CHOICE_FORMAT.unpack_from(memory, 8 * end)
    terms = NativeTerms(memory, memory_at, candidates, library, predicted_s)
    return Decision(policy.name, ids, place, None, terms, cached, held)
