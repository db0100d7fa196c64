from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from replica.model.source import packaged_gguf, resolve_model
from replica.protocol.text import ModelFolderError


def test_a_folder_is_itself(tiny_folder: Path) -> None:
    assert resolve_model(str(tiny_folder)) == (tiny_folder, tiny_folder.name)


@pytest.mark.parametrize("name", ["no-such-model", "/no/such/folder", "./x", "a/b/c"])
def test_an_unknown_name_is_refused_by_name(name: str) -> None:
    with pytest.raises(ModelFolderError, match=name):
        resolve_model(name)


@pytest.mark.model
def test_the_converted_weights_equal_transformers_own_import(model_folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    source = packaged_gguf()
    theirs = AutoModelForCausalLM.from_pretrained(
        str(source.parent), gguf_file=source.name, dtype=torch.float32
    ).state_dict()
    ours = load_file(model_folder / "model.safetensors")
    assert set(theirs) - set(ours) <= {"lm_head.weight"}
    assert all(torch.equal(theirs[name], weight) for name, weight in ours.items())
