from pathlib import Path

import pytest
import torch
import typer
from rich.console import Console

from deploy.cards import visible_cards
from deploy.cli import _cards
from deploy.local import FleetOptions, LocalFleet


def test_cards_are_those_that_the_environment_names() -> None:
    assert visible_cards({"CUDA_VISIBLE_DEVICES": "3, GPU-ab"}) == ["3", "GPU-ab"]
    assert visible_cards({"CUDA_VISIBLE_DEVICES": ""}) == []
    assert len(visible_cards({})) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)


def test_no_two_replicas_on_one_card(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert _cards("cuda", 2) == _cards("cuda", None) == ["0", "1"]
    assert _cards("cpu", 7) == []
    with pytest.raises(typer.Exit):
        _cards("cuda", 3)
    assert "replicas: 3 are more than the 2 GPUs (device)" in capsys.readouterr().err


def test_replicas_on_gpus_are_given_no_flags_of_a_cpu() -> None:
    on_gpu = LocalFleet(FleetOptions(Path(), "m", cards=["0", "1"], kv_memory_gib=2.0), Path(), Console())
    assert on_gpu._torch_flags == {"--device": "cuda", "--kv-memory-gib": "2.000"}
    on_cpu = LocalFleet(FleetOptions(Path(), "m", kv_memory_gib=2.0), Path(), Console())
    assert {"--device": "cpu", "--weights": "int8"}.items() <= on_cpu._torch_flags.items()
