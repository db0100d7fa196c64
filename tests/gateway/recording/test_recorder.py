"""The recorder within a real gateway, and its file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry

from gateway.config import GatewayConfig, Timeouts
from gateway.errors import StartError
from gateway.keys import POOLS
from gateway.metrics import Metrics
from gateway.recording.recorder import TraceWriter
from tests.gateway.fakes import (
    Behaviour,
    FakeReplica,
    answers,
    answers_status,
    dies_in_body,
    eventually,
    gateway,
    publisher_for,
)
from tests.gateway.recording.test_lines import ENTRY


def read(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def fates(metrics: Metrics) -> dict[str, float]:
    return {fate: metrics.recorded_requests.labels(fate)._value.get() for fate in ("written", "dropped")}


def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


def test_a_full_file_makes_room_for_a_new_one(tmp_path: Path) -> None:
    path, counts = tmp_path / "trace.jsonl", metrics()
    path.write_text("of an earlier run\n")
    writer = TraceWriter(path, 1000, 0.0, counts)
    assert Path(f"{path}.1").read_text() == "of an earlier run\n"
    writer.start()
    for number in range(20):
        writer.put(replace(ENTRY, received_at=float(number)))
    writer.close()
    old, new = read(Path(f"{path}.1")), read(path)
    assert path.stat().st_size <= 1000 and Path(f"{path}.1").stat().st_size <= 1000
    assert [line["timestamp"] for line in old + new][-1] == 19_000
    assert old[0]["hash_ids"] == new[0]["hash_ids"] == [0, 1, 2]
    assert old[0]["session_id"] != new[0]["session_id"]
    assert fates(counts) == {"written": 20, "dropped": 0}


def test_what_the_queue_has_no_room_for_is_counted(tmp_path: Path) -> None:
    counts = metrics()
    writer = TraceWriter(tmp_path / "trace.jsonl", 1 << 20, 0.0, counts, queue_size=3)
    for _ in range(5):
        writer.put(ENTRY)
    writer.start()
    writer.close()
    assert len(read(tmp_path / "trace.jsonl")) == 3
    assert fates(counts) == {"written": 3, "dropped": 2}


def test_a_full_disk_ends_the_recording_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    counts = metrics()
    if not Path("/dev/full").is_char_device():
        pytest.skip("this system has no /dev/full")
    writer = TraceWriter(Path("/dev/full"), 1 << 40, 0.0, counts)
    writer.start()
    for _ in range(2000):
        writer.put(ENTRY)
    writer.close()
    assert sum(fates(counts).values()) == 2000 and fates(counts)["dropped"] > 0
    assert caplog.text.count("recording to /dev/full ends") == 1


async def recorded(
    model: Path, redis_url: str, path: Path, behaviour: Behaviour, **fields: Any
) -> list[dict[str, Any]]:
    timeouts = Timeouts(connect_s=1, first_byte_s=5, idle_s=5, queue_s=1, grace_s=2)
    config = GatewayConfig(model, redis_url, timeouts=timeouts, policy="round_robin", record=path)
    async with (
        gateway(config) as stack,
        FakeReplica("r1", behaviour).serving() as replica,
        publisher_for(stack.redis, replica, model).serving(),
    ):
        await eventually(lambda: bool(stack.app[POOLS].first.index.replicas()))
        for _ in range(2):
            async with await stack.chat("Is there a ramp at the secret entrance? " * 4, **fields) as response:
                await response.read()
    return read(path)


async def test_streams_and_whole_answers_are_recorded_without_text(
    model_folder: Path, redis_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    fields = {"stream": True, "user": "guest-7", "cache_salt": "of a tenant"}
    lines = await recorded(model_folder, redis_url, path, answers, **fields)
    assert [line["hash_ids"][:-1] for line in lines] == [list(range(len(lines[0]["hash_ids"]) - 1))] * 2
    assert all(len(line["hash_ids"]) == -(-line["input_length"] // 16) for line in lines)
    assert [line["cached_delivered"] for line in lines] == [16, 16]
    assert 0 <= lines[0]["timestamp"] <= lines[1]["timestamp"] and lines[0]["ttft_ms"] <= lines[0]["duration_ms"]
    assert lines[0]["session_id"] == lines[1]["session_id"] and lines[0]["tenant_id"]
    raw = path.read_bytes()
    for secret in (b"secret", b"guest-7", b"of a tenant", b"one "):
        assert secret not in raw


@pytest.mark.parametrize(
    ("behaviour", "fields"), [(answers_status(500), {}), (dies_in_body, {"stream": True}), (dies_in_body, {})]
)
async def test_failures_are_recorded_as_such(
    model_folder: Path, redis_url: str, tmp_path: Path, behaviour: Behaviour, fields: dict[str, Any]
) -> None:
    lines = await recorded(model_folder, redis_url, tmp_path / "trace.jsonl", behaviour, **fields)
    assert [line.get("failed") for line in lines] == [True, True]


async def test_a_file_that_cannot_be_written_is_said(model_folder: Path, redis_url: str, tmp_path: Path) -> None:
    config = GatewayConfig(model_folder, redis_url, record=tmp_path / "none" / "trace.jsonl")
    with pytest.raises(StartError, match="No such file"):
        async with gateway(config):
            pass
