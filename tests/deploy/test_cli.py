"""The command line from the outside."""

import socket
from pathlib import Path

import pytest

from tests.processes import run_command


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["up"],
        ["compare"],
        ["replay"],
        ["simulate"],
        ["gateway"],
        ["replica"],
        ["profile"],
        ["adopt"],
        ["bench", "engine"],
        ["bench", "index"],
        ["bench", "routing"],
        ["bench", "peers"],
    ],
)
def test_help_reads_well(arguments: list[str]) -> None:
    ended = run_command("deploy.cli", *arguments, "--help")
    assert ended.returncode == 0
    assert "Usage:" in ended.stdout
    assert all(len(line) <= 80 for line in ended.stdout.splitlines())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["up", "--replica", "2"], "No such option"),
        (["up", "--replicas", "0"], "--replicas"),
        (["nonsense"], "nonsense"),
        (["up", "--engine", "timing"], "profile"),
        (["up", "--profile", "cpu"], "profile"),
        (["compare", "--engine", "timing"], "profile"),
        (["compare", "--engine", "timing", "--profile", "cpu", "--gateway", "http://127.0.0.1:1"], "--gateway"),
        (["profile", "--url", "http://127.0.0.1:1", "-o", "/tmp/profile.json"], "127.0.0.1:1"),
        (["up", "--model", "no-such-model"], "no-such-model"),
        (["compare", "--gateway", "http://127.0.0.1:1"], "127.0.0.1:1"),
        (["replay", "--trace", "no-such-trace"], "no-such-trace"),
        (["simulate", "--trace", "no-such-trace"], "no-such-trace"),
        (["simulate", "--like", "http://127.0.0.1:1"], "--like: can't reach"),
        (["replica", "--redis-url", "redis://127.0.0.1:1"], "Redis at redis://127.0.0.1:1"),
        (["gateway", "--redis-url", "redis://127.0.0.1:1"], "127.0.0.1:1"),
        (["gateway", "--redis-url", "redis://127.0.0.1:1", "--policy", "best"], "best"),
        (["bench", "engine", "--rounds", "0"], "--rounds"),
        (["bench", "routing", "--decisions", "1"], "--decisions"),
        (["bench", "engine", "--only", "prefil"], "prefil"),
        (["bench", "engine", "--vllm-python", "/nowhere"], "--vllm-python"),
        (["bench", "engine", "--llama-python", "/nowhere"], "--llama-python"),
    ],
)
@pytest.mark.model
def test_what_is_wrong_is_said_in_one_line(model_folder: Path, arguments: list[str], said: str) -> None:
    ended = run_command("deploy.cli", *arguments)
    assert ended.returncode != 0
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    errors = [line for line in ended.stderr.splitlines() if not line.startswith(("Usage:", "Try "))]
    assert len([line for line in errors if line.strip()]) == 1


@pytest.mark.model
def test_up_with_a_taken_port_says_so_and_leaves_nothing_running(model_folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = run_command("deploy.cli", "up", "--replicas", "1", "--port", str(port), "--kv-memory-gib", "0.3")
    assert ended.returncode == 1
    assert f"{port}" in ended.stderr
    assert "Traceback" not in ended.stderr
