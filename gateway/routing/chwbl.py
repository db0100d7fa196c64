"""Consistent hashing with bounded loads, as KubeAI routes by prefix: the first replica on a ring, from the prompt's key
on, whose requests in flight stay within 125 % of the mean.

After substratusai/kubeai, `internal/loadbalancer/balance_chwbl.go` (08e69e5, 2025); the algorithm is Mirrokni, Thorup
and Zadimoghaddam's, 2016. 256 points a replica, mean load 125 %, and where nobody is within the bound, the first on the
ring. That is so as long as there are few requests for as many replicas, for then the bound is below one.

Theirs hashes the first 100 characters of the first user message, behind any system prompt. Where messages begin can't
be seen in tokens, so ours hashes the first 256 tokens (KEY_BLOCKS), as `prefix_hash` of SGLang's model gateway does.
Behind a system prompt that is longer than that all prompts have one key, and only the bound spreads them.
"""

import numpy as np
from numpy.typing import NDArray

from gateway.routing.base import Decision, RouteRequest, Stateless, decide, prefix_key
from gateway.routing.candidates import Candidates, Mask, mixed

KEY_BLOCKS = 16
POINTS = 256
LOAD_FACTOR = 1.25

_STRIDE = 1024


class _Ring:
    """The points of replicas known by their hashed ids. Those that aren't candidates are passed over, so it is the same
    ring for whoever is away for a while: what it knows changes how soon it answers, not what."""

    def __init__(self) -> None:
        self._replicas = np.zeros(0, np.uint64)
        self._points = np.zeros(0, np.uint64)
        self._owners = np.zeros(0, np.intp)

    def places(self, id_hashes: NDArray[np.uint64]) -> NDArray[np.intp]:
        """Of replicas among those that own points; takes in those that are new."""
        places = self._replicas.searchsorted(id_hashes)
        if not len(self._replicas) or (self._replicas.take(places, mode="clip") != id_hashes).any():
            keeps = len(self._replicas) <= 2 * len(id_hashes)
            self._build(np.union1d(self._replicas, id_hashes) if keeps else np.unique(id_hashes))
            places = self._replicas.searchsorted(id_hashes)
        return places

    def first(self, key: int, eligible: Mask) -> int:
        """Owner of the first point from the key on whose owner is eligible: somebody must be."""
        start = int(self._points.searchsorted(np.uint64(key)))
        for part in (self._owners[start:], self._owners[:start]):
            for begin in range(0, len(part), _STRIDE):
                owners = part[begin : begin + _STRIDE]
                found = int(eligible[owners].argmax())
                if eligible[owners[found]]:
                    return int(owners[found])
        raise AssertionError("nobody is eligible")

    def known(self) -> int:
        return len(self._replicas)

    def _build(self, replicas: NDArray[np.uint64]) -> None:
        self._replicas = replicas
        steps = np.arange(1, POINTS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        points = mixed(replicas[:, np.newaxis] + steps).ravel()
        order = points.argsort(kind="stable")
        self._points, self._owners = points[order], order // POINTS


class Chwbl(Stateless):
    name = "chwbl"

    def __init__(self, key_blocks: int = KEY_BLOCKS) -> None:
        self._key_blocks = key_blocks
        self._ring = _Ring()

    def choose(self, request: RouteRequest, candidates: Candidates, now: float) -> Decision:
        requests = candidates.requests
        total = requests.sum()
        bound = (total + 1) / len(candidates) * LOAD_FACTOR if total else np.inf
        within = requests + 1 <= bound
        key = prefix_key(request, self._key_blocks)
        owners = self._ring.places(candidates.id_hash)
        eligible = np.zeros(self._ring.known(), np.bool_)
        eligible[owners[within] if within.any() else owners] = True
        place = int((owners == self._ring.first(key, eligible)).argmax())
        return decide(self, request, candidates, place, requests, within_bound=within.astype(float))
