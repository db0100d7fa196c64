import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from loadtest.index_bench.run import IndexBenchOptions, SubjectFailed, SubjectProcess, bench_index
from tests.gateway.fakes import write_model

FIGURES = {
    *("gib_per_10m_blocks", "match_128_us", "match_6250_us", "apply_blocks_per_s", "join_100x50k_s"),
    *("redis_bytes_per_block", "longest_load_ms", "longest_sweep_ms", "join_snapshots_a_replica"),
    *(f"{during}_loop_held_{what}" for during in ("join", "apply") for what in ("ms", "p999_ms", "cpu_ms")),
}


def test_a_small_bench_gives_every_figure(tmp_path: Path) -> None:
    said = io.StringIO()
    sizes = {"blocks": 60_000, "replicas": 8, "churn_prompts": 1000, "join_replicas": 3, "join_blocks": 10_000}
    model = write_model(tmp_path / "model")
    options = IndexBenchOptions(
        tmp_path, rounds=2, matches=20, deltas=20, apply_deltas=3, model=model, gateway_requests=20, **sizes
    )
    bench_index(options, Console(file=said, width=100))
    body = json.loads(said.getvalue().splitlines()[-1])
    assert body == json.loads((tmp_path / "index.json").read_bytes())
    assert body["bench"] == "index" and body["rounds"] == 2
    figures = body["figures"]
    assert set(figures) >= FIGURES | {f"plain_{name}" for name in FIGURES if "redis" not in name} | {"churn_growth_mib"}
    added = {"slow_redis_added_p99_ms", "no_redis_added_p99_ms"}
    assert added < set(figures)
    assert all(value > 0 for name, value in figures.items() if name not in added | {"churn_growth_mib"})
    assert 8 <= figures["redis_snapshot_bytes_per_block"] <= 12 <= figures["redis_bytes_per_block"]


def test_a_subject_that_dies_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    subject = SubjectProcess("native")
    try:
        with pytest.raises(SubjectFailed, match="native index has failed at nonsense"):
            subject.ask("nonsense")
        assert "KeyError" in capfd.readouterr().err
    finally:
        subject.close()
