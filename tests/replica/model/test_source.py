import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from replica.model.config import ModelConfig
from replica.model.registry import load_model
from replica.model.source import packaged_gguf, resolve_model
from replica.protocol.text import ModelFolderError
from tests.tiny_model import write_tiny_model


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


def edited_config(folder: Path, **fields: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"architectures": ["GPT9"]}, "GPT9"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling"),
        ({"attention_bias": True}, "attention bias"),
        ({"hidden_act": "relu"}, "activation"),
        ({"num_hidden_layers": "two"}, "config.json"),
        ({"num_hidden_layers": 3}, "model.layers.2"),
    ],
)
def test_what_would_compute_something_else_is_refused(tmp_path: Path, fields: dict[str, object], named: str) -> None:
    write_tiny_model(tmp_path)
    with pytest.raises(ModelFolderError, match=named):
        load_model(edited_config(tmp_path, **fields), int8=False)


def test_rope_theta_is_found_where_newer_configs_keep_it(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    edited_config(tmp_path, rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert ModelConfig.load(tmp_path).rope_theta == 5e5
