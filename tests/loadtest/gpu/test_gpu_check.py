import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from loadtest.gpu.limits import LIMITS_S
from loadtest.gpu.parts import PARTS
from loadtest.gpu.table import NOT_ON_A_CARD
from replica.model.source import default_model_folder

HAS_CUDA = torch.cuda.is_available()


def check(out: Path, *flags: str, status: int = 0) -> tuple[dict[str, Any], str]:
    """What it has written, and what it has said."""
    command = [sys.executable, "-m", "loadtest.gpu_check", "--out", str(out), *flags]
    environment = {name: value for name, value in os.environ.items() if name != "RYOKAN_VLLM_PYTHON"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-2000:]
    report: dict[str, Any] = json.loads(out.read_text())
    return report, done.stdout


def test_runs_to_its_end_without_a_card_and_says_so(tiny_folder: Path, tmp_path: Path) -> None:
    report, said = check(tmp_path / "gpu.json", "--device", "cpu", "--small", "--model", str(tiny_folder))
    assert report["bench"] == "gpu" and not report["on_card"] and report["targets"] == {}
    assert [entry for entry in report["checks"] if not entry["ok"]] == []
    assert {f"part_{part.name}_s" for part in PARTS} <= report["figures"].keys()
    assert report["figures"]["greedy_equal_share"] == 1
    assert report["figures"]["workload_tokens_per_s"] > 0
    assert NOT_ON_A_CARD in said


def test_what_fails_in_one_part_hides_no_other(tiny_folder: Path, tmp_path: Path) -> None:
    """No weights: of transformers' answers nothing can be known, the rest goes on; in processes of their own too."""
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "config.json").write_bytes((tiny_folder / "config.json").read_bytes())
    flags = ["--device", "cpu", "--small", "--model", str(folder), "--only", "greedy,peaks", "--apart"]
    report, said = check(tmp_path / "gpu.json", *flags, status=1)
    ended = {entry["name"]: entry["ok"] for entry in report["checks"]}
    assert ended == {"greedy ran to its end": False, "peaks ran to its end": True}
    assert report["figures"]["copy_gb_per_s"] > 0
    assert "FAILED greedy ran to its end" in said


def test_each_part_has_a_limit() -> None:
    assert [part.name for part in PARTS] == list(LIMITS_S)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CUDA, reason="torch finds no CUDA device")
@pytest.mark.parametrize("part", ["parity", "greedy"])
def test_on_the_card(part: str, tmp_path: Path) -> None:
    report, _ = check(tmp_path / "gpu.json", "--model", str(default_model_folder()), "--only", part)
    assert report["on_card"]
    assert [entry for entry in report["checks"] if not entry["ok"]] == []
