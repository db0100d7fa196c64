"""vLLM at the 8B shape, where it is installed."""

import json
import subprocess
import tempfile
import time
from pathlib import Path

from loadtest.gpu.bench import Bench
from loadtest.gpu.shapes import LLAMA_8B

_CONTEXT = 1024
_STEPS = 100


def measure_vllm_8b(bench: Bench) -> None:
    if bench.vllm_python is None or bench.device.type != "cuda":
        bench.record.note("8B shape: no vLLM to compare with (RYOKAN_VLLM_PYTHON names no Python, or there is no card)")
        return
    with tempfile.TemporaryDirectory(prefix="ryokan-gpu-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(LLAMA_8B))
        program = Path(__file__).parent / "vllm_decode.py"
        command = [str(bench.vllm_python), str(program), folder, str(_CONTEXT), str(_STEPS), "1", "64"]
        limit = max(1.0, bench.deadline_s - time.monotonic())
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    if done.returncode:
        raise RuntimeError(f"vLLM ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    for batch, seconds in json.loads(done.stdout.strip().splitlines()[-1]).items():
        bench.record.figure(f"vllm_8b_{batch}_ms", seconds * 1e3)
        bench.record.figure(f"vllm_8b_{batch}_tokens_per_s", int(batch) / seconds)
