import json
import subprocess
import sys
from pathlib import Path

from loadtest.gateway_bench.loads import LOADS
from loadtest.gateway_bench.proxies import Proxy
from loadtest.gateway_bench.run import schedule
from loadtest.peers.routers import VERSIONS

LIMIT_S = 300


def bench(*flags: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploy.cli", "bench", "gateway", "--quick", *map(str, flags)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


def test_proxies_take_turns_within_a_round() -> None:
    turns = list(schedule([Proxy("a", [], 1), Proxy("b", [], 2)], 2))
    assert len(turns) == 2 * len(LOADS) * 3
    for load in LOADS.values():
        for number in range(2):
            taken = [turn.proxy.name if turn.proxy else "direct" for turn in turns
                     if (turn.round, turn.load) == (number, load)]  # fmt: skip
            assert sorted(taken) == ["a", "b", "direct"]
    assert len({str(turns[place].proxy) for place in range(0, len(turns), 3)}) == 3


def test_a_quick_bench_gives_every_figure(chatml_folder: Path, tmp_path: Path) -> None:
    result = bench("--model", chatml_folder, "--out", tmp_path, "--peers-home", tmp_path, "--proxies", "sglang-router")
    assert result.returncode == 0, result.stderr
    body = json.loads(result.stdout.splitlines()[-1])
    assert body == json.loads((tmp_path / "gateway.json").read_bytes())
    assert body["bench"] == "gateway" and "sglang-router" in VERSIONS
    assert set(body["absent"]) == {"sglang-router"}
    figures = body["figures"]
    for load in LOADS:
        for proxy in ("direct", "ryokan", "ryokan:upstream", "aiohttp"):
            assert figures[f"{load}.{proxy}.failed"] == 0
            assert figures[f"{load}.{proxy}.answered_per_s"] > 0
    positive = ["cpu_per_request_x_aiohttp", "cpu_per_request_8k_x_aiohttp", "cpu_per_chunk_x_aiohttp"]
    positive += ["added_ttft_64_ms", "added_ttft_1_ms", "gib_per_50k_streams"]
    assert all(figures[name] > 0 for name in positive)
    assert {"gib_per_50k_idle", "distinct_prompts_growth_mib", "distinct_prompts_growth_after_mib"} <= set(figures)


def test_what_a_gateway_says_as_it_dies_is_told(chatml_folder: Path, tmp_path: Path) -> None:
    result = bench("--model", chatml_folder, "--peers-home", tmp_path, "--gateway-flags", "--policy nonsense")
    assert result.returncode == 1
    assert "ryokan ended with status 2" in result.stderr and "nonsense" in result.stderr
    assert result.stdout == ""
