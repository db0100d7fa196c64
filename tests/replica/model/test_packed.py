import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import kernels
from replica.model import packed
from replica.model.layers import Int8Linear
from replica.model.packed import build_packed, packed_path
from replica.model.registry import load_model
from replica.model.weights import WeightFiles, Weights
from tests.engines import answers, generate, make_engine
from tests.tiny_model import write_tiny_model

ROOT = Path(packed.__file__).parents[2]
NORM = "model.norm.weight"
QKV = [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"]
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RYOKAN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "packed"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    write_tiny_model(folder)
    return folder


def tensors(weights: Weights) -> list[torch.Tensor]:
    linear = weights.linear(QKV)
    assert isinstance(linear, Int8Linear)
    return [weights.load(NORM), weights.load(EMBEDDING), linear.weight.data, linear.weight.scale]


def in_memory(folder: Path) -> list[torch.Tensor]:
    files = WeightFiles(folder)
    linear = kernels.pack_int8(torch.cat([files.load(name) for name in QKV]))
    return [files.load(NORM), files.load(EMBEDDING), linear.data, linear.scale]


def equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def cached(cache: Path) -> list[Path]:
    return sorted(cache.iterdir())


def change_weights(folder: Path, dtype: torch.dtype = torch.float32) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    save_file({name: (weight * 2).to(dtype) for name, weight in weights.items()}, path)
    os.utime(path, ns=(1, 1))  # the clock of a file system may be too coarse to tell the two apart


def test_first_and_second_load_have_equal_bits(cache: Path, folder: Path) -> None:
    expected = in_memory(folder)
    assert equal(build_packed(folder, tensors), expected)
    (path,) = cached(cache)
    written = path.stat()
    assert equal(build_packed(folder, tensors), expected)
    assert path.stat().st_mtime_ns == written.st_mtime_ns and path.stat().st_ino == written.st_ino


def test_both_loads_are_mapped(cache: Path, folder: Path) -> None:
    for _ in range(2):
        data = build_packed(folder, tensors)[2]
        assert data.data_ptr() % 64 == 0
        (path,) = cached(cache)
        assert any(
            int(start, 16) <= data.data_ptr() < int(end, 16)
            for start, end in (line.split()[0].split("-") for line in _maps() if line.endswith(str(path)))
        )


def _maps() -> list[str]:
    return Path("/proc/self/maps").read_text().splitlines()


def test_other_types_than_fp32_are_kept_as_fp32(cache: Path, folder: Path) -> None:
    change_weights(folder, torch.bfloat16)
    for _ in range(2):
        assert equal(build_packed(folder, tensors), in_memory(folder))


def test_changed_weights_are_packed_anew_and_the_old_file_goes(cache: Path, folder: Path) -> None:
    build_packed(folder, tensors)
    before = cached(cache)
    change_weights(folder)
    assert equal(build_packed(folder, tensors), in_memory(folder))
    assert len(cached(cache)) == 1 and cached(cache) != before


def test_a_changed_layout_is_packed_anew(cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_packed(folder, tensors)
    before = cached(cache)
    monkeypatch.setattr(kernels, "INT8_LAYOUT", kernels.INT8_LAYOUT + 1)
    build_packed(folder, tensors)
    assert len(cached(cache)) == 1 and cached(cache) != before


@pytest.mark.parametrize("damage", ["cut", "longer", "empty", "header", "magic"])
def test_a_damaged_file_is_written_again(
    cache: Path, folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    build_packed(folder, tensors)
    (path,) = cached(cache)
    content = path.read_bytes()
    flipped = {"header": 60, "magic": 0}.get(damage, 0)
    path.write_bytes(
        {"cut": content[:-1], "longer": content + b"x", "empty": b""}.get(
            damage, content[:flipped] + bytes([content[flipped] ^ 1]) + content[flipped + 1 :]
        )
    )
    assert equal(build_packed(folder, tensors), in_memory(folder))
    assert cached(cache) == [path] and path.read_bytes() == content
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert str(path) in record.getMessage()


def test_weights_that_were_not_packed_together_are_packed_again(cache: Path, folder: Path) -> None:
    build_packed(folder, tensors)
    linear = build_packed(folder, lambda weights: weights.linear(QKV[:2]))
    assert isinstance(linear, Int8Linear)
    assert torch.equal(linear.weight.data, kernels.pack_int8(WeightFiles(folder).load_rows(QKV[:2])).data)


def test_a_folder_that_cannot_be_written_packs_in_memory(
    cache: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        loaded = build_packed(folder, tensors)
    assert equal(loaded, in_memory(folder))
    assert len([record for record in caplog.records if "memory" in record.getMessage()]) == 1


def test_a_full_disk_leaves_no_half_file(
    cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    assert equal(build_packed(folder, tensors), in_memory(folder))
    assert cached(cache) == []
    assert "No space left" in caplog.text


def test_processes_that_start_at_once_agree(cache: Path, folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from replica.model.registry import load_model;"
        "_, model = load_model(Path(sys.argv[1]), int8=True);"
        "print(model._head.weight.data.long().sum().item())"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert len({process.communicate()[0] for process in processes}) == 1
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert cached(cache) == [packed_path(WeightFiles(folder))]


def test_a_model_answers_alike_from_memory_and_from_the_file(
    cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [[5, 6, 7, 8] * 5, [9, 10]]
    runs = [answers(generate(make_engine(folder, int8=True), prompts)) for _ in range(2)]
    monkeypatch.setattr(packed, "write_packed", _fails)
    runs.append(answers(generate(make_engine(folder, int8=True), prompts)))
    cached(cache)[0].unlink()
    runs.append(answers(generate(make_engine(folder, int8=True), prompts)))
    assert runs[0] == runs[1] == runs[2] == runs[3]


def _fails(*_: object) -> None:
    raise OSError("read-only")


def test_a_missing_weight_is_named(cache: Path, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ValueError, match=r"model\.layers\.2"):
        load_model(folder, int8=True)
