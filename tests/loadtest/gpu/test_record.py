from pathlib import Path

from loadtest.gpu.figures import TARGETS, derived
from loadtest.gpu.record import Check, Recorder, read_findings


def test_what_was_recorded_is_read_even_if_the_last_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "part.jsonl"
    recorder = Recorder(path)
    recorder.figure("decode_1_ms", 0.123456)
    recorder.check("rms_norm", False, "worst 2.0")
    recorder.note("no vLLM")
    recorder.fact("device", "none")
    with path.open("a") as file:
        file.write('{"figure": "half')
    found = read_findings(path)
    assert found.figures == {"decode_1_ms": 0.1235}
    assert found.checks == [Check("rms_norm", False, "worst 2.0")]
    assert (found.notes, found.facts) == (["no vLLM"], {"device": "none"})


def test_a_part_that_recorded_nothing(tmp_path: Path) -> None:
    assert read_findings(tmp_path / "absent").figures == {}


def test_shares_of_the_roofs_and_ratios_follow() -> None:
    figures = {
        "copy_gb_per_s": 4000.0,
        "matmul_tflops": 800.0,
        "decode_8b_1_gb_per_s": 3600.0,
        "prefill_8k_tflops": 200.0,
        "decode_1_ms": 0.5,
        "decode_1_eager_ms": 2.0,
        "decode_8b_64_ms": 10.0,
        "vllm_8b_64_ms": 12.0,
    }
    assert derived(figures) == {
        "decode_8b_1_of_bandwidth": 0.9,
        "prefill_8k_of_matmul": 0.25,
        "graphs_x_eager_1": 4.0,
        "decode_8b_64_x_vllm": 1.2,
    }


def test_targets() -> None:
    assert TARGETS["decode_1_ms"].met(0.8) and not TARGETS["decode_1_ms"].met(0.81)
    assert TARGETS["graphs_x_eager_1"].met(3) and not TARGETS["graphs_x_eager_1"].met(2.9)
    assert [str(TARGETS[name]) for name in ("decode_1_ms", "graphs_x_eager_1")] == ["≤ 0.8", "≥ 3"]
