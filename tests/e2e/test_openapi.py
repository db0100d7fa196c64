"""The description at /openapi.json against the gateway that publishes it: real requests drawn from it by schemathesis,
the same ones on every run, and no answer that breaks it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.processes import Process

pytest.importorskip("schemathesis")

SEED = "1"
EXAMPLES = "5"
"""Random ones for each operation, beside the boundary cases of its schema: about 2,000 requests in all."""


@pytest.fixture(scope="module")
def url(tool_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    command = ["deploy.cli", "up", "--model", str(tool_folder), "--replicas", "1", "--port", "0"]
    process = Process([*command, "--kv-memory-gib", "0.05"], tmp_path_factory.mktemp("fleet") / "log")
    yield process.wait_for(r"gateway +(http\S+)")
    assert process.stop() == 0


def schemathesis(url: str, folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--seed", SEED, "--no-shrink"]
    limits = ["--request-timeout", "20", "--max-failures", "20", "--warnings", "off"]
    done = subprocess.run(
        [*command, *limits, *arguments], cwd=folder, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_is_answered_as_described(url: str, tmp_path: Path) -> None:
    said = schemathesis(url, tmp_path, "--phases", "examples")
    assert "12 generated, 12 passed" in said


def test_no_request_drawn_from_the_description_breaks_it(url: str, tmp_path: Path) -> None:
    """What JSON Schema can't say, as that two fields exclude each other, may be refused: hence the excluded check."""
    said = schemathesis(
        url,
        tmp_path,
        *("--phases", "coverage,fuzzing", "--max-examples", EXAMPLES),
        *("--exclude-checks", "positive_data_acceptance", "--continue-on-failure"),
    )
    assert "No issues found" in said


async def test_every_public_route_has_head_and_options_and_is_described(http: aiohttp.ClientSession) -> None:
    described = json.loads(await (await http.get("/openapi.json")).read())["paths"]
    for path, operations in described.items():
        concrete = path.replace("{model}", "tiny").replace("{request_id}", "none")
        async with http.options(concrete) as response:
            assert response.status == 204 and not await response.read()
            methods = set(response.headers["Allow"].split(", "))
        assert methods == {method.upper() for method in operations} | {"OPTIONS"} | (
            {"HEAD"} if "get" in operations else set()
        )
        async with http.head(concrete) as head:
            assert not await head.read()
        if "get" in operations:
            async with http.get(concrete) as whole:
                assert (head.status, head.content_type) == (whole.status, whole.content_type), path
        else:
            assert head.status == 405
