"""The access log of a real process, and settings that it ends with."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.gateway.fakes import eventually
from tests.processes import Process, run_command


@asynccontextmanager
async def gateway_process(model: Path, redis_url: str, folder: Path, *flags: str) -> AsyncIterator[tuple[str, Process]]:
    command = ["gateway", "--model", str(model), "--redis-url", redis_url, "--port", "0", "--log-level", "debug"]
    process = Process([*command, *flags], folder / "said")
    try:
        url = await asyncio.to_thread(process.wait_for, r"ready on (http\S+)", 60)
        yield url, process
    finally:
        assert await asyncio.to_thread(process.stop) == 0


async def test_the_access_log_goes_on_in_a_new_file_on_sighup(
    model_folder: Path, redis_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "access.log"
    flags = ["--access-log", str(log)]
    async with (
        gateway_process(model_folder, redis_url, tmp_path, *flags) as (url, process),
        aiohttp.ClientSession() as http,
    ):
        await http.get(f"{url}/health")
        await eventually(lambda: log.read_bytes().count(b"\n") == 1)
        os.rename(log, tmp_path / "old.log")
        process.signal(signal.SIGHUP)
        await eventually(log.exists)
        await http.get(f"{url}/v1/models")
        await eventually(lambda: log.read_bytes().count(b"\n") == 1)
    assert json.loads(log.read_text())["path"] == "/v1/models"


async def test_the_access_log_can_be_standard_output(model_folder: Path, redis_url: str, tmp_path: Path) -> None:
    async with gateway_process(model_folder, redis_url, tmp_path, "--access-log", "-") as (url, process):
        async with aiohttp.ClientSession() as http:
            await http.get(f"{url}/health")
        await eventually(lambda: '"path":"/health"' in process.said)


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--access-log", "/none/here"], 1, "--access-log: /none/here can't be written: No such file or directory"),
        (["--otlp-endpoint", "collector:4318"], 2, "otlp_endpoint must be a URL"),
        (["--cors-origins", "app.example.org"], 2, "cors_origins: 'app.example.org' is no origin"),
    ],
)
def test_wrong_settings_end_with_one_line(
    model_folder: Path, redis_url: str, flags: list[str], code: int, words: str
) -> None:
    command = ["gateway", "--model", str(model_folder), "--redis-url", redis_url, "--port", "0", *flags]
    done = run_command(*command)
    assert done.returncode == code and words in done.stderr and done.stderr.count("\n") == 1
