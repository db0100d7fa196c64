import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from loadtest.peers.errors import PeersError
from loadtest.peers.routers import routers
from loadtest.peers.run import PeersOptions, Run, bench_peers, schedule


def names(runs: list[Run], round: int, load: str) -> list[str]:
    return [run.router.name for run in runs if (run.round, run.load) == (round, load)]


def test_each_round_has_all_in_another_order_and_the_baseline_once(tmp_path: Path) -> None:
    (ours, baseline), _ = routers(tmp_path)
    other = ours.__class__("other", "cache_aware", ours.command, "1")
    runs = schedule([ours, baseline, other], ["agents", "sessions"], rounds=2)
    assert names(runs, 0, "agents") == ["ryokan", "other"]
    assert names(runs, 0, "sessions") == ["ryokan:round_robin", "other", "ryokan"]
    assert names(runs, 1, "agents") == ["other", "ryokan"]
    assert names(runs, 1, "sessions") == ["ryokan", "other"]
    assert len(runs) == 9


def test_without_sessions_the_baseline_runs_on_the_first_load(tmp_path: Path) -> None:
    found, _ = routers(tmp_path)
    runs = schedule(found, ["giant", "agents"], rounds=1)
    assert sorted(names(runs, 0, "giant")) == ["ryokan", "ryokan:round_robin"]
    assert names(runs, 0, "agents") == ["ryokan"]


async def test_a_small_bench_of_our_gateway_alone(chatml_folder: Path, tmp_path: Path) -> None:
    said = io.StringIO()
    options = PeersOptions(
        chatml_folder, "m", tmp_path / "no-peers", tmp_path, rounds=1, replicas=2, only_loads=("agents",),
        time_scale=0.1, quick=True,
    )  # fmt: skip
    await bench_peers(options, Console(file=said, width=200))
    body = json.loads(said.getvalue().splitlines()[-1])
    assert body == json.loads((tmp_path / "peers.json").read_bytes())
    assert body["bench"] == "peers" and set(body["absent"]) == {"sglang-router", "smg", "vllm-router"}
    figures = body["figures"]
    for router in ("ryokan", "ryokan:round_robin"):
        assert figures[f"agents.{router}.failed"] == 0
        assert figures[f"agents.{router}.hit_share"] > 0.3
        assert 1 <= figures[f"agents.{router}.work_max_over_mean"] <= 2
        assert figures[f"agents.{router}.router_cpu_ms_per_request"] > 0
        assert figures[f"agents.{router}.step_over_profile"] > 0.9
    assert not any("over_best_peer" in name for name in figures)
    rounds = json.loads((tmp_path / "peers-rounds.json").read_bytes())
    assert set(rounds) == {"agents.ryokan", "agents.ryokan:round_robin"}


async def test_a_load_that_there_is_not_is_named(chatml_folder: Path, tmp_path: Path) -> None:
    options = PeersOptions(chatml_folder, "m", tmp_path, tmp_path, only_loads=("agent",))
    with pytest.raises(PeersError, match="'agent' is none of agents, prefixes"):
        await bench_peers(options, Console(file=io.StringIO()))
