"""`ryokan up --engine timing`: a whole fleet that computes nothing."""

import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Process, run_command


def call(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def test_a_fleet_without_a_gpu(tiny_folder: Path, tmp_path: Path) -> None:
    flags = ["--engine", "timing", "--profile", "h100-qwen3-32b", "--time-scale", "0.1", "--kv-tokens", "4096"]
    policies = tmp_path / "policies.toml"
    policies.write_text('policy = "least_tokens"\nshadow = "ttft"\n')
    model = ["--model", str(tiny_folder), "--port", "0", "--policy-file", str(policies)]
    process = Process(["deploy.cli", "up", "--replicas", "4", *model, *flags], tmp_path / "log")
    try:
        url = process.wait_for(r"gateway +(http\S+)")
        rows = call(f"{url}/replicas")
        assert [row["state"] for row in rows] == ["ready"] * 4
        assert "replica --redis-url unix://" in process.said and " --profile h100-qwen3-32b" in process.said
        prompt = "Is the lift wide enough for a wheelchair? " * 4
        body = {"model": tiny_folder.name, "messages": [{"role": "user", "content": prompt}], "max_tokens": 12}
        answers = [call(f"{url}/v1/chat/completions", body) for _ in range(3)]
        assert len({answer["choices"][0]["message"]["content"] for answer in answers}) == 1
        assert answers[2]["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
        shadow = call(f"{url}/route/shadow")
        assert (shadow["policy"], shadow["shadow"]) == ("least_tokens", "ttft")
        assert [call(f"{row['url']}/profile")["kv_tokens"] for row in rows] == [4096] * 4
    finally:
        process.signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.model
def test_policies_compared_on_replicas_that_compute_nothing(model_folder: Path, tmp_path: Path) -> None:
    flags = ["--engine", "timing", "--profile", "cpu", "--time-scale", "0.02", "--kv-tokens", "8192"]
    load = ["--agents", "4", "--cities", "2", "--turns", "1", "--output-tokens", "4", "--policies", "round_robin"]
    model = ["--model", str(model_folder), "--replicas", "2"]
    ended = run_command("deploy.cli", "compare", *model, *flags, *load, "--out", str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    figures = json.loads((tmp_path / "report.json").read_text())["policies"]["round_robin"]
    assert figures["requests_failed"] == 0
    assert figures["prompt_tokens"] > 0


@pytest.mark.model
def test_a_smoke_run_of_the_routing_bench(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACES", raising=False)
    arguments = ["--quick", "--policies", "ttft,least_tokens", "--out", str(tmp_path)]
    ended = run_command("deploy.cli", "bench", "routing", *arguments, timeout_s=300)
    assert ended.returncode == 0, ended.stderr
    body = json.loads(ended.stdout.splitlines()[-1])
    figures = body["figures"]
    assert body["bench"] == "routing" and body["rounds"] == 1
    assert figures["decide_64_p99_us"] > 0 and figures["worst_ratio_to_best"] > 0
    assert 0.2 < figures["simulated_over_measured_ttft"] < 5
