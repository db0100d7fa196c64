import io
import json
from pathlib import Path

from rich.console import Console

from gateway.routing.registry import POLICIES
from loadtest.routing_bench.rig import Rig
from loadtest.routing_bench.run import RoutingBenchOptions, bench_routing


def test_a_small_bench_gives_every_figure(tmp_path: Path) -> None:
    said = io.StringIO()
    options = RoutingBenchOptions(tmp_path, replicas=(4, 64), rounds=2, decisions=20, warm_up=5)
    bench_routing(options, Console(file=said, width=200))
    *table, last = said.getvalue().splitlines()
    body = json.loads(last)
    assert body == json.loads((tmp_path / "routing.json").read_bytes())
    assert body["bench"] == "routing" and body["rounds"] == 2
    names = {
        f"{policy}_{replicas}_{figure}"
        for policy in [*POLICIES, "decide"]
        for replicas in (4, 64)
        for figure in ("p50_us", "p99_us", "p99_cpu_us")
    }
    assert set(body["figures"]) == names
    assert all(value > 0 for value in body["figures"].values())
    assert body["figures"]["decide_64_p99_us"] == body["figures"]["ttft_64_p99_us"]
    for policy in POLICIES:
        assert any(f" {policy} " in line for line in table), policy


def test_a_rig_leaves_nothing_in_flight() -> None:
    rig = Rig(5)
    passed, computed = rig.decide("ttft", 30)
    assert len(passed) == len(computed) == 30
    assert all(status.leases == 0 for status in rig._fleet.statuses(0.0).values())
