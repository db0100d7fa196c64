"""Recorded workloads, from small files of the same form."""

from pathlib import Path

import orjson
import pytest

from loadtest.simulate.catalogue import KINDS, find_kind
from loadtest.simulate.errors import SimulateError
from loadtest.simulate.workload import Setting, Workload


def write(folder: Path, name: str, lines: list[dict[str, object]]) -> None:
    (folder / name).write_bytes(b"\n".join(map(orjson.dumps, lines)))


def make(name: str, folder: Path | None, seed: int = 0, rate_scale: float = 2.0) -> Workload:
    return find_kind(name).make(Setting(seed, rate_scale, replicas=2, kv_tokens=300_000, traces=folder))


def test_a_mooncake_block_is_one_block_and_lengths_keep_their_blocks(tmp_path: Path) -> None:
    lengths = [512, 513, 1024, 1030, 1535, 1]
    lines: list[dict[str, object]] = [
        {"timestamp": 3000 * n, "input_length": n_in, "output_length": 100, "hash_ids": list(range(-(-n_in // 512)))}
        for n, n_in in enumerate(lengths)
    ]
    write(tmp_path, "mooncake_conversation.jsonl", lines)
    load = make("conversation", tmp_path)
    assert load.stride == 32
    assert [request.at_s for request in load.requests] == [1.5 * n for n in range(6)]
    assert [len(request.hashes) for request in load.requests] == [length // 512 for length in lengths]
    assert [-(-request.tokens // 16) for request in load.requests] == [-(-length // 512) for length in lengths]
    for request, length in zip(load.requests, lengths, strict=True):
        assert abs(request.tokens - length / 32) <= 1


@pytest.mark.parametrize(("name", "file"), [("taubench", "taubench_airline_blk16"), ("miniswe", "miniswe_blk16")])
def test_a_session_waits_for_its_answers(name: str, file: str, tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {
            "session_id": f"s{session}",
            "turn": turn,
            "t_in_session_ms": 5000 * turn,
            "input_length": 20 + 40 * turn,
            "output_length": 10,
            "hash_ids": [1, *range(10 * (session + 1), 10 * (session + 1) + -(-(20 + 40 * turn) // 16) - 1)],
        }
        for session in range(3)
        for turn in range(3)
    ]
    write(tmp_path, f"{file}.jsonl", lines)
    load = make(name, tmp_path)
    assert [request.after for request in load.requests] == [-1, 0, 1, -1, 3, 4, -1, 6, 7]
    assert all(request.at_s > 0 for request in load.requests)
    first, second = load.requests[:2]
    assert first.answer(first.tokens, 10) == [second.ids[1]] * 10 or first.ids[1] == second.ids[1]
    assert make(name, tmp_path).requests == load.requests
    assert [r.at_s for r in make(name, tmp_path, seed=1).requests] != [r.at_s for r in load.requests]


def test_sessions_with_a_request_that_fits_no_replica_are_left_out(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"session_id": name, "turn": turn, "input_length": tokens, "output_length": 10, "hash_ids": [1, 2, 3, 4]}
        for name, sizes in (("fits", (30, 54)), ("too long", (30, 55)))
        for turn, tokens in enumerate(sizes)
    ]
    write(tmp_path, "taubench_airline_blk16.jsonl", lines)
    load = find_kind("taubench").make(Setting(0, 1.0, replicas=2, kv_tokens=64, traces=tmp_path))
    assert [request.tokens for request in load.requests] == [30, 54]


def test_without_traces_the_error_names_the_flag(tmp_path: Path) -> None:
    with pytest.raises(SimulateError, match="--traces"):
        make("conversation", None)
    with pytest.raises(SimulateError, match=r"--traces: there is no .*mooncake_synthetic"):
        make("synthetic", tmp_path)


def test_an_unknown_workload_lists_those_there_are() -> None:
    with pytest.raises(SimulateError, match=r"--workload: unknown workload 'x'; there are bursts, conversation"):
        find_kind("x")
    assert len(KINDS) >= 12
