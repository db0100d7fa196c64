"""`ryokan up --engine timing`: a whole fleet that computes nothing."""

import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

from tests.processes import Process


def call(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def test_a_fleet_without_a_gpu(tiny_folder: Path, tmp_path: Path) -> None:
    flags = ["--engine", "timing", "--profile", "h100-qwen3-32b", "--time-scale", "0.1", "--kv-tokens", "4096"]
    model = ["--model", str(tiny_folder), "--port", "0"]
    process = Process(["deploy.cli", "up", "--replicas", "4", *model, *flags], tmp_path / "log")
    try:
        url = process.wait_for(r"gateway +(http\S+)", timeout_s=120)
        rows = call(f"{url}/replicas")
        assert [row["state"] for row in rows] == ["ready"] * 4
        assert "replica --redis-url unix://" in process.said and " --profile h100-qwen3-32b" in process.said
        prompt = "Is the lift wide enough for a wheelchair? " * 4
        body = {"model": tiny_folder.name, "messages": [{"role": "user", "content": prompt}], "max_tokens": 12}
        answers = [call(f"{url}/v1/chat/completions", body) for _ in range(3)]
        assert len({answer["choices"][0]["message"]["content"] for answer in answers}) == 1
        assert answers[2]["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
        assert [call(f"{row['url']}/profile")["kv_tokens"] for row in rows] == [4096] * 4
    finally:
        process.signal(signal.SIGTERM)
        assert process.wait(60) == 0
