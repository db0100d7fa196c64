"""Preble's E2: go where the prefix is if that is more than half the prompt, else where it costs the fleet least.

After Srivatsa et al., "Preble" (arXiv 2407.00023, ICLR 2025), and WukLab/preble,
`multi_node/global_scheduler_with_time.py` (0c962c4, 2024):

- Exploit, where a replica was sent more than half of the prompt: of those sent the most, the one with the least load.
- Explore, otherwise: the lowest load + eviction + prefill, in seconds.
- Load: prefill of what was sent there uncached within the last three minutes, and the decodes that are running, each of
  45 tokens, its default length.

What differs. Prefill and decode times are the replicas' own fitted cost models; theirs are of one model on one GPU. An
eviction costs there what those blocks of the tree served that would go, on a GPU supposed to be full; here the share of
prompt tokens that the replica's cache has been serving, and only for blocks that aren't free. The tree has
PrefixHistory's bound. Rebalancing and replication of hot prefixes are left out, as they are switched off in the code.
"""

from collections import deque

import numpy as np

from gateway.routing.base import Decision, RouteRequest, decide
from gateway.routing.candidates import Candidates, Floats, usable_tokens
from gateway.routing.prefix_history import PrefixHistory
from replica.protocol.hashing import BLOCK_SIZE

WINDOW_S = 180.0
MAX_WINDOW = 1 << 17
"""Requests."""
DECODE_TOKENS = 45


class Preble:
    name = "preble"

    def __init__(self) -> None:
        self.history = PrefixHistory()
        self._window: deque[tuple[float, str, int]] = deque()
        """When, where, uncached tokens."""
        self._tokens: dict[str, int] = {}
        """Of the window, by replica."""

    def choose(self, request: RouteRequest, candidates: Candidates, now: float) -> Decision:
        blocks = self.history.matched(request.hashes, candidates.ids)
        cached = np.minimum(blocks, (request.tokens - 1) // BLOCK_SIZE) * BLOCK_SIZE
        load = self._load_s(candidates, now)
        eviction = _eviction_s(candidates, request.tokens - cached)
        prefill = candidates.prefill_s(request.tokens, cached)
        exploits = 2 * cached.max() > request.tokens
        cost = load if exploits else load + eviction + prefill
        among = cached == cached.max() if exploits else np.ones(len(candidates), np.bool_)
        place = candidates.first(among & (cost == cost[among].min()))
        terms = {"load_s": load, "eviction_s": eviction, "prefill_s": prefill, "sent_tokens": cached}
        return decide(self, request, candidates, place, cost, **terms)

    def placed(self, request: RouteRequest, decision: Decision, now: float) -> None:
        uncached = request.tokens - usable_tokens(self.history.add(decision.choice, request.hashes), request.tokens)
        self._window.append((now, decision.choice, uncached))
        self._tokens[decision.choice] = self._tokens.get(decision.choice, 0) + uncached
        while self._window[0][0] < now - WINDOW_S or len(self._window) > MAX_WINDOW:
            _, replica, tokens = self._window.popleft()
            self._tokens[replica] -= tokens
            if not self._tokens[replica]:
                del self._tokens[replica]

    def _load_s(self, candidates: Candidates, now: float) -> Floats:
        inside = self._tokens
        if self._window and self._window[0][0] < now - WINDOW_S:
            inside = inside.copy()
            for at, replica, tokens in self._window:
                if at >= now - WINDOW_S:
                    break
                inside[replica] -= tokens
        sent = np.array([inside.get(replica, 0) for replica in candidates.ids], dtype=float)
        step: Floats = candidates.c0 + candidates.c_dec * candidates.decoding
        load: Floats = candidates.c_lin * sent + candidates.decoding * DECODE_TOKENS * step
        return load


def _eviction_s(candidates: Candidates, uncached: Floats) -> Floats:
    evicted = np.maximum(0.0, uncached / BLOCK_SIZE - candidates.free_blocks)
    evicted = np.where(candidates.total_blocks > 0, evicted, 0.0)
    seconds: Floats = candidates.c_lin * BLOCK_SIZE * evicted * candidates.reuse
    return seconds
