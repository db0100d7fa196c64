"""Ours: the replica with the lowest predicted time to first token, in seconds, plus what the choice costs others.

    T_r = queue_r + prefill_r + interference_r + eviction_r + recompute_r

The first three are this request's own wait. The last two are compute that the choice makes somebody else wait for:
blocks pushed out of a full cache that would have been used again, and blocks computed here though another replica has
them. Without the last one a burst over one context scatters, since an idle replica that computes the context anew
answers as soon as the one that is just computing it; and then nobody has room for the next context.

Where a prompt brings a context that is new to the whole fleet, the choice is also where those to come will find it.
So of the replicas that cost hardly more than the cheapest, by half the time it takes to compute what is new, the one
with the most free blocks takes it in: contexts spread evenly, and with them the decodes that they bring.
All constants are measured; there is no knob.
"""

from collections.abc import Mapping, Sequence

from gateway.routing.base import Decision, ReplicaView, RouteRequest, branch_hash, rendezvous
from replica.protocol.hashing import BLOCK_SIZE
from replica.protocol.records import CostModel

TIE = 1.01
"""Costs this close say nothing: a fitted cost model is no better than a per cent."""

NOMINAL = CostModel(c0=0.01, c_lin=1e-4, c_att=0.0, c_dec=1e-4, max_step_tokens=2048)
"""Stands in until a replica has fitted its own: then only the proportions matter, and tokens count most."""


class Ttft:
    name = "ttft"

    def choose(self, request: RouteRequest, candidates: Sequence[ReplicaView], now: float) -> Decision:
        busy = sum(view.queue_tokens > 0 for view in candidates) / len(candidates)
        best_cached = max(view.cached_tokens(request) * view.trust for view in candidates)
        terms = {view.id: _terms(request, view, busy, best_cached) for view in candidates}
        near = _near_cheapest(request, candidates, terms, best_cached)
        most_free = max(_free_blocks(view) for view in near)
        roomiest = [view for view in near if _free_blocks(view) == most_free]
        limit = min(terms[view.id]["total_s"] for view in roomiest) * TIE
        tied = [view for view in roomiest if terms[view.id]["total_s"] <= limit]
        chosen = tied[0] if len(tied) == 1 else rendezvous(branch_hash(request, candidates), tied)
        return Decision(chosen.id, chosen.cached_tokens(request), self.name, terms)


def _near_cheapest(
    request: RouteRequest,
    candidates: Sequence[ReplicaView],
    terms: Mapping[str, Mapping[str, float]],
    best_cached: float,
) -> list[ReplicaView]:
    cheapest = min(candidates, key=lambda view: terms[view.id]["total_s"])
    new_s = _cost(cheapest).prefill_s(request.tokens, best_cached) - _cost(cheapest).c0
    best = terms[cheapest.id]["total_s"]
    limit = max(best * TIE, best + new_s / 2)
    return [view for view in candidates if terms[view.id]["total_s"] <= limit]


def _cost(view: ReplicaView) -> CostModel:
    return view.cost if view.cost.c_lin > 0 and view.cost.max_step_tokens > 0 else NOMINAL


def _terms(request: RouteRequest, view: ReplicaView, busy: float, best_cached: float) -> dict[str, float]:
    cost = _cost(view)
    cached = view.cached_tokens(request) * view.trust
    uncached = request.tokens - cached
    queue_steps = view.queue_tokens / cost.max_step_tokens
    steps = queue_steps + max(1.0, uncached / cost.max_step_tokens)
    queue = cost.c_lin * view.queue_tokens + cost.c0 * queue_steps
    prefill = cost.prefill_s(request.tokens, cached)
    interference = cost.c_dec * view.decoding * steps
    eviction = cost.c_lin * BLOCK_SIZE * _evicted_blocks(view, uncached) * view.reuse
    recompute = cost.c_lin * (best_cached - cached) * busy
    return {
        "queue_s": queue,
        "prefill_s": prefill,
        "interference_s": interference,
        "eviction_s": eviction,
        "recompute_s": recompute,
        "total_s": queue + prefill + interference + eviction + recompute,
        "queue_tokens": float(view.queue_tokens),
        "cached_tokens": cached,
        "uncached_tokens": uncached,
        "trust": view.trust,
    }


def _free_blocks(view: ReplicaView) -> float:
    """After the queue ahead has taken its own."""
    return max(0.0, view.free_blocks - view.queue_tokens / BLOCK_SIZE)


def _evicted_blocks(view: ReplicaView, uncached: float) -> float:
    """Blocks that must go for this prompt's new ones."""
    return max(0.0, uncached / BLOCK_SIZE - _free_blocks(view)) if view.total_blocks else 0.0
