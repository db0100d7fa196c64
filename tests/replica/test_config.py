from pathlib import Path
from typing import Any

import pytest

from replica.config import ConfigError, EngineConfig, ReplicaConfig, available_memory_bytes


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"weights": "int3"}, "weights"),
        ({"kv": "fp16"}, "kv"),
        ({"threads": 0}, "threads"),
        ({"threads": 10_000}, "threads"),
        ({"max_step_tokens": 0}, "max_step_tokens"),
        ({"max_running": 0}, "max_running"),
        ({"max_step_tokens": 64, "max_running": 64}, "max_step_tokens: 64 .* 64 decodes"),
        ({"kv_memory_bytes": 0}, "kv_memory_gib"),
        ({"order": "random"}, "order: 'random' is none of shortest, lpm, fcfs"),
        ({"eviction": "random"}, "eviction: 'random' is none of lru, learned"),
    ],
)
def test_a_bad_engine_setting_is_named(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        EngineConfig(**fields)


def test_kv_follows_the_weights_unless_told_otherwise() -> None:
    assert [EngineConfig(weights=weights).kv_dtype for weights in ("int8", "fp32")] == ["int8", "fp32"]
    assert EngineConfig(weights="fp32", kv="int8").kv_dtype == "int8"
    assert EngineConfig(weights="int8", kv="fp32").kv_dtype == "fp32"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"id": "a b"}, "id"),
        ({"id": ""}, "id"),
        ({"id": "r" * 129}, "id"),
        ({"fleet": "a{b}"}, "fleet"),
        ({"redis_url": "http://h"}, "redis_url"),
        ({"redis_url": "redis://h", "host": "0.0.0.0"}, "url"),
        ({"port": 70_000}, "port"),
        ({"max_waiting": 0}, "max_waiting"),
        ({"max_waiting_tokens": 0}, "max_waiting_tokens"),
    ],
)
def test_a_bad_replica_setting_is_named(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        ReplicaConfig(folder=Path(), model_name="m", **fields)


def test_ids_are_unique_by_default() -> None:
    assert ReplicaConfig(folder=Path(), model_name="m").id != ReplicaConfig(folder=Path(), model_name="m").id


def test_available_memory_is_plausible() -> None:
    assert 2**20 < available_memory_bytes() < 2**50


def test_a_step_is_as_long_as_the_threads_are_many() -> None:
    assert EngineConfig(threads=1).step_tokens == 256
    assert EngineConfig(threads=1, max_step_tokens=100).step_tokens == 100
