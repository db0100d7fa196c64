import json
import subprocess
import sys
from pathlib import Path

import pytest

from replica.model.registry import load_model
from replica.protocol.text import ModelFolderError
from tests.tiny_model import write_tiny_model

ROOT = Path(__file__).parents[3]


def edited_config(folder: Path, **fields: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"architectures": ["GPT9"]}, "GPT9"),
        ({"architectures": []}, "architectures"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 4.0}}, "spiral"),
        ({"attention_bias": True}, "q_proj.bias"),
        ({"mlp_bias": True}, "gate_proj.bias"),
        ({"hidden_act": "relu"}, "activation"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers"),
        ({"num_hidden_layers": 3}, "model.layers.2"),
        ({"vocab_size": None}, "vocab_size"),
        ({"head_dim": 20}, "dimension 20"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "3 heads"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"architectures": ["MistralForCausalLM"], "layer_types": ["full_attention"] * 2}, "layer_types"),
        ({"architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attention"]}, "layer_types"),
        ({"architectures": ["Qwen2ForCausalLM"], "layer_types": ["linear_attention"] * 2}, "layer_types"),
        ({"architectures": ["Qwen2ForCausalLM"], "layer_types": ["sliding_attention"] * 2}, "use_sliding_window"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "q_norm"),
    ],
)
def test_what_would_compute_something_else_is_refused(tmp_path: Path, fields: dict[str, object], named: str) -> None:
    write_tiny_model(tmp_path)
    with pytest.raises(ModelFolderError, match=named):
        load_model(edited_config(tmp_path, **fields), int8=False)


def test_a_config_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelFolderError, match=r"config\.json"):
        load_model(tmp_path, int8=False)


def test_our_own_architectures_load_without_transformers(tiny_folder: Path) -> None:
    code = (
        "import sys, pathlib; from replica.model.registry import load_model; "
        f"load_model(pathlib.Path({str(tiny_folder)!r}), int8=True); sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
