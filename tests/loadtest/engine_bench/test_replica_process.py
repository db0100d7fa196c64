"""A real replica with a tiny model."""

import json
from pathlib import Path
from random import Random

import pytest

from loadtest.engine_bench.errors import BenchError
from loadtest.engine_bench.replica_process import measure_replica, running_replica
from tests.tiny_model import VOCAB, write_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    return folder


def test_all_blocks_are_written_before_the_memory_counts(folder: Path, tmp_path: Path) -> None:
    figures = measure_replica(folder, VOCAB, starts=1, logs=tmp_path, rng=Random(1))
    assert figures["ready_s"] > 0
    assert figures["ttft_cached_over_cold_http"] > 0
    assert figures["rss_mib"] > figures["rss_ready_mib"] > 50
    assert figures["rss_mib"] >= figures["pss_mib"] > 0


def test_a_replica_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(BenchError, match=r"didn't start: .*config\.json"),
        running_replica(tmp_path, 0.1, tmp_path / "replica.log"),
    ):
        pass
