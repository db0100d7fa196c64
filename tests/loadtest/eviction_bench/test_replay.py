import json
from pathlib import Path
from random import Random

from loadtest.eviction_bench.replay import belady, hit_ratio, pooled, routed
from loadtest.eviction_bench.traces import Request, recorded, sessions
from loadtest.eviction_bench.workloads import Workload


def of(*paths: tuple[int, ...], pages: int, caches: int = 1) -> Workload:
    return Workload("w", [Request(path, len(path) * 16) for path in paths], 16, caches, pages)


def test_a_loop_finds_nothing_by_lru_and_most_by_belady() -> None:
    work = of(*[(1,), (2,), (3,)] * 3, pages=2)
    assert pooled(work, "lru") == [0] * 9
    assert sum(belady(work)) == 4
    assert hit_ratio(work, belady(work)) == 4 / 9


def test_a_partial_block_counts_its_tokens() -> None:
    work = Workload("w", [Request((1, 2), 20), Request((1, 2), 20)], 16, 1, 4)
    assert pooled(work, "lru") == [0, 2]
    assert hit_ratio(work, [0, 2]) == 0.5


def test_a_request_goes_where_its_prefix_is() -> None:
    work = of(*[(n, n + 10, n + 20) for _ in range(5) for n in range(4)], pages=6, caches=4)
    assert sum(routed(work, "lru")) == 4 * 4 * 3


def test_no_policy_finds_more_than_belady(seed: int) -> None:
    rng = Random(seed)
    work = of(*[tuple(10 * n + k for k in range(rng.randrange(1, 9))) for n in rng.choices(range(20), k=300)], pages=40)
    best = sum(belady(work))
    assert 0 < sum(pooled(work, "lru")) <= best
    assert 0 < sum(pooled(work, "learned")) <= best


def test_sessions_interleave_and_keep_their_own_order(tmp_path: Path) -> None:
    rows = [
        {"session_id": f"s{s}", "hash_ids": [s * 10 + turn], "input_length": 9, "output_length": 5}
        for s in range(9)
        for turn in range(9)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [request.blocks[0] for request in recorded(path)] == [row["hash_ids"][0] for row in rows]  # type: ignore[index]
    blocks = [request.blocks[0] for request in sessions(path, 2, Random(0))]
    assert sorted(blocks) != blocks
    assert all([b for b in blocks if b // 10 == s] == list(range(10 * s, 10 * s + 9)) for s in range(9))
