"""Limits, against what trying everything gives."""

import random
from itertools import product

import pytest

from loadtest.simulate.limits import Arrival, belady, infinite, lru_pool, pooled_ttfts, srpt_flow_times, ttft_bound
from loadtest.simulate.prompts import Request, Row, make_requests
from replica.protocol.hashing import BLOCK_SIZE
from replica.protocol.records import CostModel

COST = CostModel(c0=0.1, c_lin=0.01, c_att=0.0, c_dec=0.0, max_step_tokens=10_000)


def requests_of(*chains: list[int]) -> list[Request]:
    """Prompts of these blocks and one token more, so that all of them are usable."""
    rows = [Row(0.0, len(chain) * BLOCK_SIZE + 1, [*chain, 10_000 + n], 1) for n, chain in enumerate(chains)]
    return make_requests(rows, [-1] * len(rows))


def random_chains(randomness: random.Random, count: int) -> list[list[int]]:
    """Paths of a small tree: an id is its path."""
    chains = []
    for _ in range(count):
        path, chain = 1, []
        for _ in range(randomness.randint(1, 3)):
            path = path * 3 + randomness.randint(0, 1)
            chain.append(path)
        chains.append(chain)
    return chains


def best_by_trying(chains: list[list[int]], blocks: int) -> int:
    """Most blocks found, over all that a cache may keep after each request."""
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for chain in chains:
        following: dict[frozenset[int], int] = {}
        for held, found in states.items():
            hits = next((i for i, block in enumerate(chain) if block not in held), len(chain))
            there = sorted(held | set(chain))
            for keep in product((False, True), repeat=len(there)):
                kept = frozenset(block for block, is_kept in zip(there, keep, strict=True) if is_kept)
                if len(kept) <= blocks:
                    following[kept] = max(following.get(kept, 0), found + hits)
        states = following
    return max(states.values())


@pytest.mark.parametrize("seed", range(12))
def test_belady_finds_as_much_as_any_cache_could(seed: int) -> None:
    print("seed", seed)
    randomness = random.Random(seed)
    chains = random_chains(randomness, 6)
    blocks = randomness.randint(1, 4)
    hits = belady(requests_of(*chains), blocks)
    assert sum(hits) == best_by_trying(chains, blocks) * BLOCK_SIZE


@pytest.mark.parametrize("seed", range(5))
def test_the_limits_are_in_order(seed: int) -> None:
    print("seed", seed)
    randomness = random.Random(seed)
    requests = requests_of(*random_chains(randomness, 200))
    endless = sum(infinite(requests))
    for blocks in (1, 3, 8):
        assert sum(lru_pool(requests, blocks)) <= sum(belady(requests, blocks)) <= endless
    assert sum(lru_pool(requests, 1000)) == sum(belady(requests, 1000)) == endless


def test_a_pool_evicts_the_deepest_of_what_was_unused_longest() -> None:
    requests = requests_of([1, 2], [1, 3], [1, 2], [1, 3])
    assert lru_pool(requests, 2) == [0, BLOCK_SIZE, BLOCK_SIZE, BLOCK_SIZE]
    assert lru_pool(requests, 3) == [0, BLOCK_SIZE, 2 * BLOCK_SIZE, 2 * BLOCK_SIZE]


def test_shortest_remaining_time_first_by_hand() -> None:
    # The long one is interrupted at 1 for the short one, and ends last.
    assert srpt_flow_times([0.0, 1.0, 1.5], [5.0, 1.0, 0.2]) == pytest.approx([6.2, 1.2, 0.2])


def test_the_bound_of_ttft_is_the_mean_prefill_where_nobody_waits() -> None:
    requests = requests_of([1], [2], [1])
    arrivals = [Arrival(100.0 * n, request) for n, request in enumerate(requests)]
    alone = [COST.prefill_s(17, 0), COST.prefill_s(17, 0), COST.prefill_s(17, 16)]
    assert ttft_bound(arrivals, infinite(requests), [COST, COST]) == pytest.approx(sum(alone) / 3)
    assert pooled_ttfts(arrivals, infinite(requests), [COST, COST]) == pytest.approx(alone)


def test_the_bound_of_ttft_is_the_flow_time_where_all_come_at_once() -> None:
    requests = requests_of([1], [2], [3])
    each = COST.prefill_s(17, 0)
    arrivals = [Arrival(0.0, request) for request in requests]
    assert ttft_bound(arrivals, infinite(requests), [COST]) == pytest.approx(2 * each)
