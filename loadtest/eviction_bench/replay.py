"""Requests one after another through real caches, prefill only: which share of their tokens is found."""

import heapq
from collections.abc import Sequence as Items

from loadtest.eviction_bench.traces import Request
from loadtest.eviction_bench.workloads import Workload
from replica.cache.manager import CacheManager
from replica.protocol.hashing import BLOCK_SIZE
from replica.sequence import SamplingParams, Sequence

_PARAMS = SamplingParams(max_tokens=1)
_SLACK = 8
"""Mean requests of work by which a replica may be ahead of the least loaded and still be chosen."""


def hit_ratio(workload: Workload, hit_blocks: Items[int]) -> float:
    hits = sum(
        min(hit * workload.block_tokens, request.tokens)
        for request, hit in zip(workload.requests, hit_blocks, strict=True)
    )
    return hits / sum(request.tokens for request in workload.requests)


def pooled(workload: Workload, eviction: str) -> list[int]:
    """Blocks found by each request in one cache as large as all."""
    cache = CacheManager(workload.caches * workload.pages, eviction)
    return [_serve(cache, _sequence(request, cache.num_pages)) for request in workload.requests]


def routed(workload: Workload, eviction: str) -> list[int]:
    """Blocks found by each request where it goes to the cache that holds most of it, or if none holds more than another
    to the home of its second block; unless that cache has been given too much more work than the least loaded."""
    caches = [CacheManager(workload.pages, eviction) for _ in range(workload.caches)]
    work = [0] * len(caches)
    slack = _SLACK * sum(len(request.blocks) for request in workload.requests) / len(workload.requests)
    found = []
    for request in workload.requests:
        matches = [cache.match(_sequence(request, workload.pages)) for cache in caches] if len(caches) > 1 else [0]
        home = request.blocks[:2][-1] * 2_654_435_761 % 2**32 * len(caches) // 2**32
        fit = [number for number in range(len(caches)) if work[number] <= min(work) + slack]
        chosen = max(fit, key=lambda n: (matches[n], n == home, -work[n]))
        found.append(_serve(caches[chosen], _sequence(request, workload.pages)))
        work[chosen] += len(request.blocks) - found[-1]
    return found


def belady(workload: Workload) -> list[int]:
    """The most that any policy could find in one cache as large as all, knowing what comes (Belady 1966): the block
    next used last goes, or isn't kept at all. No ancestor is used later than its child, so what is kept is closed under
    prefixes."""
    size = workload.caches * workload.pages
    uses = [block for request in workload.requests for block in request.blocks]
    never = len(uses)
    next_use = [never] * len(uses)
    upcoming: dict[int, int] = {}
    for position in range(len(uses) - 1, -1, -1):
        next_use[position] = upcoming.get(uses[position], never)
        upcoming[uses[position]] = position
    held: dict[int, int] = {}
    heap: list[tuple[int, int, int]] = []
    found, position = [], 0
    for request in workload.requests:
        found.append(sum(block in held for block in request.blocks))
        for block in request.blocks:
            held[block] = next_use[position]
            heapq.heappush(heap, (-next_use[position], -position, block))
            position += 1
        while len(held) > size:
            negative, _, block = heapq.heappop(heap)
            if held.get(block) == -negative:
                del held[block]
    return found


def _sequence(request: Request, max_blocks: int) -> Sequence:
    """Each block of the trace is one page; a token more lets all of them be found."""
    tokens = [block for block in request.blocks[:max_blocks] for _ in range(BLOCK_SIZE)]
    return Sequence("s", [*tokens, 0], _PARAMS, namespace=0)


def _serve(cache: CacheManager, sequence: Sequence) -> int:
    found = cache.admit(sequence)
    tokens = len(sequence.tokens) - 1
    assert cache.reserve(sequence, tokens), "a request is cut to the cache's size"
    sequence.num_computed = tokens
    cache.commit(sequence)
    cache.release(sequence)
    cache.take_events()
    return found // BLOCK_SIZE
