"""Weights on their way to a device: all of them, or a rank's part; whole files or shards."""

import json
import logging
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from replica.device.load import load_device_model
from replica.device.weights import WHOLE, DeviceWeights, Progress, Shard, Stage
from replica.model.weights import Split, WeightFiles
from replica.protocol.text import ModelFolderError
from tests.tiny_model import TINY, write_tiny_model, write_transformers_model

CPU = torch.device("cpu")
Q, K, GATE = (f"model.layers.0.{name}.weight" for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj"))


def weights_of(folder: Path, shard: Shard = WHOLE, dtype: torch.dtype = torch.float32) -> DeviceWeights:
    return DeviceWeights(WeightFiles(folder), CPU, dtype, shard, lambda split, outputs: outputs)


def test_stacked_rows_in_the_wanted_precision(tiny_folder: Path) -> None:
    files = WeightFiles(tiny_folder)
    x = torch.randn(3, 48).to(torch.bfloat16)
    with weights_of(tiny_folder, dtype=torch.bfloat16) as weights:
        y = weights.linear([Q, K])(x)
    stacked = torch.cat([files.load(Q), files.load(K)]).to(torch.bfloat16)
    assert torch.equal(y, x @ stacked.T)


def test_a_tensor_that_is_asked_for_twice_is_held_once(tiny_folder: Path) -> None:
    with weights_of(tiny_folder) as weights:
        first = weights.load("lm_head.weight")
        linear = weights.linear(["lm_head.weight"], None, Split.VOCABULARY)
        first.zero_()
        assert not linear(torch.randn(1, 48)).any()


def test_ranks_together_have_each_weight_once(tiny_folder: Path) -> None:
    whole = WeightFiles(tiny_folder).load(GATE)
    for split, dim in ((Split.ROWS, 0), (Split.COLUMNS, 1), (Split.VOCABULARY, 0)):
        parts = [weights_of(tiny_folder, Shard(rank, 4)).load(GATE, split) for rank in range(4)]
        assert torch.equal(torch.cat(parts, dim), whole)
    assert torch.equal(weights_of(tiny_folder, Shard(1, 4)).load(GATE), whole)


def test_outputs_that_ranks_share_are_combined_before_the_bias(tiny_folder: Path) -> None:
    x, bias = torch.randn(2, 16), torch.randn(64)
    combined: list[Split] = []

    def doubled(split: Split, outputs: torch.Tensor) -> torch.Tensor:
        combined.append(split)
        return outputs * 2

    weights = DeviceWeights(WeightFiles(tiny_folder), CPU, torch.float32, Shard(1, 3), doubled)
    part = WeightFiles(tiny_folder).load(GATE)[:, 16:32]
    assert torch.allclose(weights.linear([GATE], bias, Split.COLUMNS)(x), 2 * x @ part.T + bias, atol=1e-6)
    with pytest.raises(ModelFolderError, match=r"64 can't be divided by 3 ranks \(tensor_parallel\)"):
        weights.linear([GATE], None, Split.ROWS)
    assert combined == [Split.COLUMNS]


def test_sharded_files_give_the_same_model(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    (hidden,) = _hidden(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, held in files.items():
        save_file({name: tensors[name] for name in held}, tmp_path / file)
    index = {name: file for file, held in files.items() for name in held}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert torch.equal(_hidden(tmp_path)[0], hidden)


def _hidden(folder: Path) -> list[torch.Tensor]:
    _, model = load_device_model(folder, CPU, torch.float32)
    return [model.logits(torch.ones(1, 48))]


def test_an_architecture_without_code_of_ours_is_refused_by_name(tmp_path: Path) -> None:
    write_transformers_model(tmp_path, transformers.GPTNeoXConfig(**TINY))
    with pytest.raises(ModelFolderError, match=r"device: GPTNeoXForCausalLM .* on a CPU alone.* Qwen3ForCausalLM"):
        load_device_model(tmp_path, CPU, torch.float32)


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelFolderError, match=r"model\.norm\.weight"):
        load_device_model(tmp_path, CPU, torch.float32)


def test_copies_larger_than_the_stage() -> None:
    source = torch.randn(1000, 7)
    target = torch.empty(1000, 7)
    Stage(CPU, size=4096).copy(source, target)
    assert torch.equal(target, source)


def test_progress_is_told_by_tenths_and_by_time(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    caplog.set_level(logging.INFO)
    progress = Progress(1_000_000_000, lambda: now)
    for _ in range(10):
        progress.add(50_000_000)
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        f"weights: {share} %" for share in (10, 20, 30, 40, 50)
    ]
    now = 2.5
    progress.add(1_000_000)
    assert caplog.messages[-1] == "weights: 50 %, 0.50 of 1.00 GB, 0.20 GB/s"
    progress.report_end()
    assert caplog.messages[-1] == "weights: all there, 0.50 GB in 2.5 s, 0.20 GB/s"
