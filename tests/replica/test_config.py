from pathlib import Path
from typing import Any

import pytest

from replica.config import ConfigError, EngineConfig, ReplicaConfig, available_memory_bytes


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"weights": "int3"}, "weights"),
        ({"threads": 0}, "threads"),
        ({"threads": 10_000}, "threads"),
        ({"max_step_tokens": 0}, "max_step_tokens"),
        ({"max_running": 0}, "max_running"),
    ],
)
def test_a_bad_engine_setting_is_named(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        EngineConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"id": "a b"}, "id"), ({"id": ""}, "id"), ({"port": 70_000}, "port"), ({"max_waiting": 0}, "max_waiting")],
)
def test_a_bad_replica_setting_is_named(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        ReplicaConfig(folder=Path(), model_name="m", **fields)


def test_ids_are_unique_by_default() -> None:
    assert ReplicaConfig(folder=Path(), model_name="m").id != ReplicaConfig(folder=Path(), model_name="m").id


def test_available_memory_is_plausible() -> None:
    assert 2**20 < available_memory_bytes() < 2**50
