"""The process: its exits, its one line, its drain."""

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.gateway.fakes import FakeReplica, chat_body, publisher_for, redis_client, stalls_in_stream
from tests.redis_servers import VALKEY, Server, running


def run(*flags: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway", *map(str, flags)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def test_what_is_wrong_is_said_in_one_line(model_folder: Path, redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cases = [
            (["--model", model_folder, "--redis-url", "redis://:secret@127.0.0.1:1", "--port", 0], 1, "Redis"),
            (["--model", model_folder / "none", "--redis-url", redis_url, "--port", 0], 1, "--model"),
            (
                ["--model", model_folder, "--redis-url", redis_url, "--port", port],
                1,
                f":{port}: Address already in use",
            ),
            (["--redis-url", redis_url], 2, "--model"),
            (["--model", model_folder], 2, "upstreams"),
            (["--model", model_folder, "--upstream", "h:1"], 2, "upstreams"),
            (["--tokenizer", model_folder / "none", "--upstream", "http://h:1", "--port", 0], 1, "--model"),
            (["--model", model_folder, "--redis-url", redis_url, "--policy", "nonsense"], 2, "nonsense"),
            (["--model", model_folder, "--redis-url", "redis://:secret@h/x"], 2, "redis_url"),
            (["--model", model_folder, "--redis-url", redis_url, "--replica-networks", "10.0.0.1/8"], 2, "networks"),
            (["--model", model_folder, "--redis-url", redis_url, "--fleet-key-file", "/none"], 2, "/none"),
            (["--model", model_folder, "--redis-url", redis_url, "--shadow-policy", "nonsense"], 2, "nonsense"),
            (["--model", model_folder, "--redis-url", redis_url, "--policy-file", "/none"], 2, "policy file /none"),
            (
                ["--model", model_folder, "--redis-url", redis_url, "--admin-key-file", "/none"],
                2,
                "admin key file /none",
            ),
        ]
        for flags, code, words in cases:
            result = run(*flags)
            assert result.returncode == code, result
            assert words in result.stderr
            assert result.stderr.count("\n") == 1
            assert "secret" not in result.stderr
            assert result.stdout == ""


def test_a_wrong_password_is_said_in_one_line(model_folder: Path) -> None:
    server = Server(VALKEY, "--requirepass", "geheim")
    with running(server):
        result = run("--model", model_folder, "--redis-url", f"redis://:falsch@{server.address}", "--port", 0)
    assert result.returncode == 1
    assert "user or password is wrong" in result.stderr
    assert "falsch" not in result.stderr
    assert result.stderr.count("\n") == 1


def test_it_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, gateway.run, gateway.__main__; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 0


@pytest.mark.parametrize("finishes", [True, False])
async def test_on_sigterm_streams_go_on_for_the_grace_time(model_folder: Path, redis_url: str, finishes: bool) -> None:
    flags = [
        "--model",
        str(model_folder),
        "--redis-url",
        redis_url,
        "--port",
        "0",
        "--grace",
        "20" if finishes else "0.3",
    ]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", *flags, "--served-model-name", "tiny"), stdout=asyncio.subprocess.PIPE
    )
    try:
        async with (
            redis_client(redis_url) as redis,
            FakeReplica("r1", stalls_in_stream).serving() as replica,
            publisher_for(redis, replica, model_folder).serving(),
            aiohttp.ClientSession() as http,
        ):
            assert process.stdout is not None
            line = (await process.stdout.readline()).decode()
            assert line.startswith("gateway ready on http://127.0.0.1:")
            url = line.split()[-1]
            response = await http.post(f"{url}/v1/chat/completions", json=chat_body(stream=True))
            assert response.status == 200
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
            with pytest.raises(aiohttp.ClientConnectorError):
                await http.get(f"{url}/health")
            if finishes:
                replica.gate.set()
            body = await response.read()
            assert body.endswith(b"data: [DONE]\n\n")
            assert (b'"error"' in body) is not finishes
            async with asyncio.timeout(10):
                assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
