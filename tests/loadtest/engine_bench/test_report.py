import io
import json
from pathlib import Path

from rich.console import Console

from loadtest.engine_bench.figures import Samples, figures_of
from loadtest.engine_bench.report import EngineReport, publish


def test_the_last_line_is_the_json_that_is_also_written(tmp_path: Path) -> None:
    samples = Samples()
    for name, rate in (("ours", 123.456789), ("transformers", 10.0)):
        samples.add("decode_b1", name, {"rate": rate})
    report = EngineReport(
        machine={"cpu": "a CPU"},
        versions={"python": "3.11"},
        rounds=1,
        clock="cpu",
        figures=figures_of(samples) | {"rss_mib": 420.0},
        absent={"vllm_cpu": "not installed", "llama_cpp": "failed: it said [nothing] (log: /tmp/x.log)"},
    )
    said = io.StringIO()
    publish(report, samples, tmp_path / "out", Console(file=said, width=40))
    lines = said.getvalue().splitlines()
    body = json.loads(lines[-1])
    assert body == json.loads((tmp_path / "out" / "engine.json").read_bytes())
    assert body["bench"] == "engine"
    assert body["figures"] == {"decode_b1_x_transformers": 12.35, "decode_b1_tokens_per_s": 123.5, "rss_mib": 420.0}
    text = "\n".join(lines)
    assert body["clock"] == "cpu"
    assert "vllm_cpu: not installed" in text
    assert "failed: it said [nothing] (log: /tmp/x.log)" in text
    assert "420 MiB" in text


def test_contenders_without_samples_leave_a_dash(tmp_path: Path) -> None:
    samples = Samples()
    samples.add("decode_b1", "ours", {"rate": 50.0})
    said = io.StringIO()
    publish(EngineReport({}, {}, 1, "wall", {}, {}), samples, tmp_path, Console(file=said, width=100))
    (row,) = [line for line in said.getvalue().splitlines() if "decode_b1" in line]
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["decode_b1", "50.0", "-", "-", "-"]
