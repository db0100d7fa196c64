"""A real replica process: how soon it is ready, and what memory it takes."""

import http.client
import json
import re
import statistics
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from loadtest.engine_bench.errors import BenchError
from replica.protocol.hashing import BLOCK_SIZE

BLOCKS = 1024
_PROBE_GIB = 4.0
"""Reserved by the first start, which only finds out how large a block is."""
_START_LIMIT_S = 120.0
_POLL_S = 0.005
_REQUEST_LIMIT_S = 300.0
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Memory:
    rss_mib: float
    pss_mib: float


class RunningReplica:
    def __init__(self, pid: int, url: str, model: str) -> None:
        address = urllib.parse.urlsplit(url)
        assert address.hostname is not None and address.port is not None
        self._address = (address.hostname, address.port)
        self._pid = pid
        self._model = model

    def blocks(self) -> int:
        found = re.search(r"^ryokan_replica_blocks_total ([0-9.e+]+)$", self._get("/metrics"), re.MULTILINE)
        if found is None:
            raise BenchError("the replica's metrics don't name its blocks")
        return int(float(found.group(1)))

    def wait_ready(self) -> None:
        while self._status("/ready") != 200:
            time.sleep(_POLL_S)

    def first_token_s(self, prompt: list[int]) -> float:
        """Over HTTP, of an answer of one token."""
        body = {"model": self._model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        started = time.perf_counter()
        status, answer = self._request("POST", "/v1/completions", body)
        seconds = time.perf_counter() - started
        if status != 200:
            raise BenchError(f"the replica answered {status}: {answer[:200]}")
        return seconds

    def memory(self) -> Memory:
        """Linux only."""
        text = Path(f"/proc/{self._pid}/smaps_rollup").read_text()
        kib = {name: int(value) for name, value in re.findall(r"^(\w+): +(\d+) kB$", text, re.MULTILINE)}
        return Memory(kib["Rss"] * 1024 / _MIB, kib["Pss"] * 1024 / _MIB)

    def _get(self, path: str) -> str:
        return self._request("GET", path)[1]

    def _status(self, path: str) -> int:
        return self._request("GET", path)[0]

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection(*self._address, timeout=_REQUEST_LIMIT_S)
        try:
            headers = {} if body is None else {"content-type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            connection.close()


@contextmanager
def running_replica(folder: Path, kv_memory_gib: float, log: Path) -> Iterator[tuple[RunningReplica, float]]:
    """With the seconds from its start to its readiness. Raises BenchError."""
    command = [sys.executable, "-m", "replica", "--model", str(folder), "--served-model-name", "bench"]
    command += ["--kv-memory-gib", f"{kv_memory_gib:.9f}"]
    with log.open("wb") as errors:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
        try:
            replica = RunningReplica(process.pid, _url(process, log), "bench")
            replica.wait_ready()
            yield replica, time.perf_counter() - started
        finally:
            process.terminate()
            try:
                process.wait(_START_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


def measure_replica(folder: Path, vocabulary: int, starts: int, logs: Path, rng: Random) -> dict[str, float]:
    """`rss_mib` is with all blocks written, `rss_ready_mib` before any request. Raises BenchError."""
    log = logs / "replica.log"
    with running_replica(folder, _PROBE_GIB, log) as (replica, _):
        block_gib = _PROBE_GIB / replica.blocks()
    ready: list[float] = []
    figures: dict[str, float] = {}
    for start in range(starts):
        with running_replica(folder, (BLOCKS + 0.5) * block_gib, log) as (replica, seconds):
            ready.append(seconds)
            if start == starts - 1:
                figures = _measure_running(replica, vocabulary, rng)
    return {"ready_s": statistics.median(ready)} | figures


def _measure_running(replica: RunningReplica, vocabulary: int, rng: Random) -> dict[str, float]:
    if (blocks := replica.blocks()) != BLOCKS:
        raise BenchError(f"the replica has {blocks} blocks instead of {BLOCKS}")
    before = replica.memory()
    prefix = [rng.randrange(vocabulary) for _ in range(1000)]
    cold, cached = (replica.first_token_s(prefix + [rng.randrange(vocabulary) for _ in range(25)]) for _ in range(2))
    # Free blocks are used before any is evicted, so with more than all of them cached, all have been written.
    for _ in range(BLOCKS // (len(prefix) // BLOCK_SIZE) + 1):
        replica.first_token_s([rng.randrange(vocabulary) for _ in prefix])
    after = replica.memory()
    return {
        "rss_ready_mib": before.rss_mib,
        "rss_mib": after.rss_mib,
        "pss_mib": after.pss_mib,
        "ttft_cached_over_cold_http": cached / cold,
    }


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    """From the line by which it says that it listens."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(rb" ready on (http://\S+)", line):
            return found.group(1).decode()
    lines = log.read_text(errors="replace").strip().splitlines()
    raise BenchError(f"the replica didn't start: {lines[-1] if lines else 'it said nothing'}")
