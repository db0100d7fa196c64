"""The running example end to end over HTTP: 50 agents, a system prompt of 200 tokens for all, 800 tokens of notes for
five of them each, 25 of their own, 150 back; then a second turn. Prompts are token ids, so servers need no template."""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import aiohttp

from loadtest.client import CompletionClient, RequestRecord
from loadtest.gpu.bench import Bench
from loadtest.metrics import percentile
from loadtest.peers.errors import PeersError
from loadtest.peers.processes import Child, free_port
from replica.protocol.text import ModelText

_POLL_S = 0.25
_MODEL = "bench"


@dataclass(frozen=True, slots=True)
class Load:
    agents: int
    per_city: int
    system: int
    notes: int
    question: int
    answer: int


FULL = Load(agents=50, per_city=5, system=200, notes=800, question=25, answer=150)
SMALL = Load(agents=2, per_city=2, system=32, notes=16, question=5, answer=4)


def measure_workload(bench: Bench) -> None:
    """Ours, then vLLM where there is one; each alone on the device."""
    load = SMALL if bench.small else FULL
    ours = [sys.executable, "-m", "replica", "--model", str(bench.folder), "--served-model-name", _MODEL]
    ours += ["--device", str(bench.device)] if bench.device.type == "cuda" else ["--kv-memory-gib", "0.01"]
    _measure(bench, "workload", ours, r" ready on (http://\S+)", load)
    if bench.vllm_python is None:
        bench.record.note("workload: no vLLM to compare with (RYOKAN_VLLM_PYTHON names no Python)")
        return
    if not bench.has_time("workload of vLLM"):
        return
    port = free_port()
    theirs = [str(bench.vllm_python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(bench.folder)]
    theirs += ["--served-model-name", _MODEL, "--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"]
    theirs += ["--enable-prefix-caching", "--gpu-memory-utilization", "0.85"]
    _measure(bench, "workload_vllm", theirs, f"http://127.0.0.1:{port}", load)


def _measure(bench: Bench, name: str, command: Sequence[str], url: str, load: Load) -> None:
    """`url`: a pattern to find in what it says, or the address itself. Raises PeersError where it doesn't start."""
    with tempfile.TemporaryDirectory(prefix="ryokan-gpu-") as folder:
        environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": os.getcwd()}
        if "vllm" in name:
            del environment["PYTHONPATH"]
        started = time.monotonic()
        child = Child(name, command, Path(folder) / "log", environment)
        try:
            run = _run(bench, child, url, load, started, name)
            left = bench.deadline_s - time.monotonic()
            records, seconds = asyncio.run(asyncio.wait_for(run, left))
        finally:
            child.stop()
    _record(bench, name, records, seconds)


async def _run(
    bench: Bench, child: Child, url: str, load: Load, started: float, name: str
) -> tuple[list[RequestRecord], float]:
    async with aiohttp.ClientSession() as session:
        found = await _ready(bench, session, child, url)
        bench.record.figure(f"{name}_ready_s", time.monotonic() - started)
        client = CompletionClient(session, found, _MODEL, timeout_s=60)
        vocabulary = ModelText.load(bench.folder).vocab_size
        # Once with another seed: kernels are compiled, and nothing of it is of use for the second.
        await _turns(client, load, Random(1), vocabulary)
        begun = client.now()
        records = await _turns(client, load, Random(2), vocabulary)
        return records, client.now() - begun


async def _ready(bench: Bench, session: aiohttp.ClientSession, child: Child, url: str) -> str:
    while time.monotonic() < bench.deadline_s:
        child.check()
        found = url if url.startswith("http") else child.find(url)
        if found is not None:
            try:
                async with session.get(f"{found}/health") as response:
                    if response.status == 200:
                        return found
            except aiohttp.ClientError:
                pass
        await asyncio.sleep(_POLL_S)
    raise PeersError(f"{child.name} wasn't ready in time")


async def _turns(client: CompletionClient, load: Load, rng: Random, vocabulary: int) -> list[RequestRecord]:
    def ids(count: int) -> list[int]:
        return [rng.randrange(vocabulary // 10, vocabulary) for _ in range(count)]

    system, notes = ids(load.system), [ids(load.notes) for _ in range(-(-load.agents // load.per_city))]

    async def agent(own: list[int], city: list[int], between: list[int]) -> list[RequestRecord]:
        first = [*system, *city, *own]
        answered = await client.send(first, load.answer)
        return [answered, await client.send([*first, *between], load.answer)]

    agents = [
        agent(ids(load.question), notes[index // load.per_city], ids(load.answer + load.question))
        for index in range(load.agents)
    ]
    return [record for records in await asyncio.gather(*agents) for record in records]


def _record(bench: Bench, name: str, records: list[RequestRecord], seconds: float) -> None:
    done = [record for record in records if record.ok]
    failed = [record.error for record in records if not record.ok]
    bench.record.check(f"{name}: all answered", not failed, f"{len(failed)} failed: {failed[0]}" if failed else "")
    figures = {
        "tokens_per_s": sum(record.output_tokens for record in done) / seconds,
        "ttft_p50_ms": _ms([record.ttft_s for record in done], 50),
        "ttft_p99_ms": _ms([record.ttft_s for record in done], 99),
        "itl_p50_ms": _ms([record.itl_s for record in done], 50),
    }
    for figure, value in figures.items():
        if value is not None:
            bench.record.figure(f"{name}_{figure}", value)


def _ms(values: Sequence[float | None], percent: float) -> float | None:
    found = percentile([value for value in values if value is not None], percent)
    return None if found is None else found * 1e3
