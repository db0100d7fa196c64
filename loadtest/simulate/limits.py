"""What no policy can beat, and what a policy can reach without control over eviction. Pure.

Requests in their order of arrival; a block may be reused the instant that it was asked for, which no engine can do.
Blocks are counted as the replica's cache counts them: whole ones, and of a prompt all but its last token. Ids stand
for whole prefixes, so a cache that drops the farthest next use, or the longest unused, deepest first, stays a tree.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from statistics import fmean

from loadtest.metrics import percentile
from loadtest.simulate.prompts import Request
from replica.protocol.hashing import BLOCK_SIZE
from replica.protocol.records import CostModel

Hits = list[int]
"""Tokens found, for each request."""


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float
    request: Request


def infinite(requests: SequenceOf[Request]) -> Hits:
    """One endless cache for the whole fleet: only what was never seen is missed."""
    seen: set[int] = set()
    hits = []
    for request in requests:
        usable = _usable(request)
        hits.append(_leading(request, usable, seen.__contains__) * BLOCK_SIZE)
        seen.update(_kept(request))
    return hits


def lru_pool(requests: SequenceOf[Request], blocks: int) -> Hits:
    """One cache of all replicas' blocks that evicts as they do. No bound: a router that keeps what is used once apart
    from the rest can beat it."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = []
    for request in requests:
        usable = _usable(request)
        hits.append(_leading(request, usable, held.__contains__) * BLOCK_SIZE)
        # The deepest first: so it is the oldest, and goes first.
        for block in reversed(_kept(request)):
            held[block] = None
            held.move_to_end(block)
        while len(held) > blocks:
            held.popitem(last=False)
    return hits


def belady(requests: SequenceOf[Request], blocks: int) -> Hits:
    """One cache of all replicas' blocks that drops what is needed again last, or doesn't take it in (Belady 1966, with
    bypass): no routing and no eviction can give more."""
    never = len(requests)
    following = _next_uses(requests, never)
    held: dict[int, int] = {}
    farthest: list[tuple[int, int, int]] = []
    hits = []
    for number, request in enumerate(requests):
        kept = _kept(request)
        hits.append(_leading(request, _usable(request), held.__contains__) * BLOCK_SIZE)
        for depth, (block, use) in enumerate(zip(kept, following[number], strict=True)):
            if use == never:
                held.pop(block, None)
            else:
                held[block] = use
                heapq.heappush(farthest, (-use, -depth, block))
        while len(held) > blocks:
            use, _, block = heapq.heappop(farthest)
            if held.get(block) == -use:
                del held[block]
    return hits


def _next_uses(requests: SequenceOf[Request], never: int) -> list[list[int]]:
    """For each request and block that it leaves behind: which request is the next that could take it from a cache."""
    following: list[list[int]] = [[]] * len(requests)
    next_use: dict[int, int] = {}
    for number in range(len(requests) - 1, -1, -1):
        request = requests[number]
        following[number] = [next_use.get(block, never) for block in _kept(request)]
        for block in request.ids[: _usable(request)]:
            next_use[block] = number
    return following


def ttft_bound(arrivals: SequenceOf[Arrival], hits: Hits, costs: SequenceOf[CostModel]) -> float:
    """No mean TTFT can be less, whatever is routed where: neither than the mean prefill of what was never seen, on the
    quickest replica, nor than the mean flow time on one machine as quick as all together that always works on what has
    the least left (SRPT: Schrage 1968)."""
    different = set(costs)
    prefills = [_quickest(arrival.request, hit, different) for arrival, hit in zip(arrivals, hits, strict=True)]
    best = _fleet_speed(costs)
    flows = srpt_flow_times([arrival.at for arrival in arrivals], [prefill / best for prefill in prefills])
    return max(fmean(prefills), fmean(flows))


def srpt_flow_times(arrivals: SequenceOf[float], work: SequenceOf[float]) -> list[float]:
    """Of jobs on one machine, where the one with the least work left always runs."""
    order = sorted(range(len(arrivals)), key=lambda number: arrivals[number])
    left: list[tuple[float, int]] = []
    flows = [0.0] * len(arrivals)
    now = 0.0
    for place, number in enumerate(order):
        heapq.heappush(left, (work[number], number))
        until = arrivals[order[place + 1]] if place + 1 < len(order) else float("inf")
        now = max(now, arrivals[number])
        while left and now < until:
            remaining, running = heapq.heappop(left)
            if now + remaining <= until:
                now += remaining
                flows[running] = now - arrivals[running]
            else:
                heapq.heappush(left, (remaining - (until - now), running))
                now = until
    return flows


def pooled_ttfts(arrivals: SequenceOf[Arrival], hits: Hits, costs: SequenceOf[CostModel]) -> list[float]:
    """A reference that could be built: replicas that share one cache, each first come first served, every request to
    the one that is free first."""
    # Of replicas that are alike the one that is free first ends first.
    free_at = {cost: [0.0] * count for cost, count in Counter(costs).items()}
    ttfts = []
    for arrival, hit in zip(arrivals, hits, strict=True):
        end, cost = min(
            (
                (max(free[0], arrival.at) + cost.prefill_s(arrival.request.tokens, hit), cost)
                for cost, free in free_at.items()
            ),
            key=lambda found: found[0],
        )
        heapq.heapreplace(free_at[cost], end)
        ttfts.append(end - arrival.at)
    return ttfts


def limits(arrivals: SequenceOf[Arrival], blocks: int, costs: SequenceOf[CostModel]) -> dict[str, float | None]:
    """All of them, for a fleet of so many blocks in all and these replicas. Arrivals in order."""
    if not arrivals:
        return {}
    requests = [arrival.request for arrival in arrivals]
    total = sum(request.tokens for request in requests)
    endless, pool = infinite(requests), lru_pool(requests, blocks)
    pooled = pooled_ttfts(arrivals, pool, costs)
    return {
        "hit_infinite": sum(endless) / total,
        "hit_belady": sum(belady(requests, blocks)) / total,
        "hit_lru_pool": sum(pool) / total,
        "ttft_mean_bound_s": ttft_bound(arrivals, endless, costs),
        "ttft_mean_lru_pool_s": fmean(pooled),
        "ttft_p99_lru_pool_s": percentile(pooled, 99),
    }


def _usable(request: Request) -> int:
    """Blocks that it can take from a cache: not the one with its last token."""
    return (request.tokens - 1) // BLOCK_SIZE


def _kept(request: Request) -> SequenceOf[int]:
    """Whole blocks of its prompt and answer, which it leaves in a cache."""
    return request.ids[: request.whole_blocks]


def _leading(request: Request, usable: int, holds: Callable[[int], bool]) -> int:
    return next((i for i, block in enumerate(request.ids[:usable]) if not holds(block)), usable)


def _quickest(request: Request, hit: int, costs: Collection[CostModel]) -> float:
    return min(cost.prefill_s(request.tokens, hit) for cost in costs)


def _fleet_speed(costs: SequenceOf[CostModel]) -> float:
    """Of all replicas together, in terms of the quickest one."""
    least = min(cost.c_lin for cost in costs)
    return sum(least / cost.c_lin for cost in costs)
