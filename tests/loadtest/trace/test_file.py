from pathlib import Path
from typing import Any

import orjson
import pytest

from loadtest.trace.errors import TraceError
from loadtest.trace.file import Times, coarser, read_trace


def write(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return path


def line(tokens: int = 40, ids: list[int] | None = None, **more: Any) -> dict[str, Any]:
    return {"input_length": tokens, "output_length": 9, "hash_ids": ids or [7, 8, 9], **more}


def test_arrivals_are_put_in_order_and_begin_at_0(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", line(timestamp=5000), line(timestamp=2000, ids=[7, 3, 4]))
    trace = read_trace(path)
    assert (trace.name, trace.times, trace.block) == ("a", Times.ARRIVALS, 16)
    assert [(item.at_s, list(item.blocks)) for item in trace.lines] == [(0.0, [0, 1, 2]), (3.0, [0, 3, 4])]


def test_what_a_gateway_tells_beside_is_used(tmp_path: Path) -> None:
    recorded = line(timestamp=0, session_id="s", block_size=16, duration_ms=250.0, ttft_ms=3.0)
    trace = read_trace(write(tmp_path / "a.jsonl", recorded))
    assert (trace.lines[0].session, trace.lines[0].duration_s) == ("s", 0.25)


def test_sessions_without_arrivals(tmp_path: Path) -> None:
    within = write(tmp_path / "a.jsonl", line(session_id="s", t_in_session_ms=1500))
    assert read_trace(within).times is Times.IN_SESSION and read_trace(within).lines[0].at_s == 1.5
    assert read_trace(write(tmp_path / "b.jsonl", line(session_id="s"))).times is Times.NONE


def test_large_blocks_are_recognised_and_scaled(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", line(1000, [1, 2], timestamp=0), line(512, [1], timestamp=0))
    assert read_trace(path).block == 512
    small = read_trace(path, scale=32)
    assert small.block == 16 and [item.tokens for item in small.lines] == [31, 16]
    assert read_trace(path, scale=8).block == 64


def test_scaling_keeps_the_number_of_blocks_and_whole_blocks() -> None:
    for tokens in range(1, 1100):
        blocks = -(-tokens // 64)
        small = coarser(tokens, blocks, 64, 4)
        assert -(-small // 16) == blocks
        assert (small % 16 == 0) == (tokens % 64 == 0)


@pytest.mark.parametrize(
    ("text", "scale", "words"),
    [
        ("{broken", 1, ":1: no JSON"),
        ('{"input_length": 4}', 1, ":1: input_length, output_length or hash_ids"),
        ('{"input_length": 0, "output_length": 1, "hash_ids": [1], "timestamp": 0}', 1, "at least one token"),
        ('{"input_length": 40, "output_length": 1, "hash_ids": [1, 2, 3]}', 1, "neither timestamp nor session_id"),
        ('{"input_length": 40, "output_length": 1, "hash_ids": [1, 2, 3, 4, 5], "timestamp": 0}', 1, "no block size"),
        ('{"input_length": 40, "output_length": 1, "hash_ids": [1, 2, 3], "timestamp": 0}', 32, "--scale"),
        ('{"input_length": 40, "output_length": 1, "hash_ids": [1, 2, 3], "timestamp": "x"}', 1, "request 1"),
        ("", 1, "no requests"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, scale: int, words: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_trace(path, scale)
    assert words in str(caught.value)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "none.jsonl")
