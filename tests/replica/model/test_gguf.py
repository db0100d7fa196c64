"""A tiny llama of transformers, written as GGUF as llama.cpp's converter does, and back."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from replica.model.gguf import convert
from replica.protocol.text import ModelFolderError
from tests.engines import logits_in_chunks
from tests.tiny_model import CHAT_TEMPLATE, TINY, VOCAB, write_transformers_model

PROMPT = [(7 * index * index + 3 * index) % 290 + 2 for index in range(50)]
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(path: Path, model: Any, fields: dict[str, Any], tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    config = model.config
    numbers = {
        "context_length": config.max_position_embeddings, "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers, "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads, "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim, "vocab_size": VOCAB,
    }  # fmt: skip
    for name, number in numbers.items():
        writer.add_uint32(f"llama.{name}", number)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(1e4)
    for name, value in fields.items():
        writer.add_key_value(f"llama.rope.{name}", value, _type(value))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["a", "b", "ab", *(f"t{index}" for index in range(3, VOCAB))])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges(["a b"])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_unk_token_id, writer.add_pad_token_id):
        add(0)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, weight in model.state_dict().items():
        writer.add_tensor(_gguf_name(name), _permuted(name, weight, config).numpy())
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _type(value: Any) -> gguf.GGUFValueType:
    types = {str: gguf.GGUFValueType.STRING, float: gguf.GGUFValueType.FLOAT32, int: gguf.GGUFValueType.UINT32}
    return types[type(value)]


def _gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem.startswith("model.layers."):
        index, part = stem.removeprefix("model.layers.").split(".", 1)
        return f"blk.{index}.{NAMES[part]}.weight"
    return f"{NAMES[stem]}.weight"


def _permuted(name: str, weight: torch.Tensor, config: Any) -> torch.Tensor:
    for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
        if part in name:
            halves = weight.reshape(heads, 2, -1, weight.shape[1])
            return halves.swapaxes(1, 2).reshape(weight.shape).contiguous()
    return weight


def _divisors() -> np.ndarray[Any, Any]:
    """As llama.cpp's converter writes them: plain frequencies over scaled ones."""
    rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding
    plain = rotary(transformers.LlamaConfig(**TINY)).inv_freq
    scaled = rotary(transformers.LlamaConfig(**TINY, rope_parameters=dict(LLAMA3))).inv_freq
    return np.asarray((plain / scaled).numpy(), dtype=np.float32)


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}


@pytest.mark.parametrize(
    ("rope", "fields", "head_dim"),
    [
        (None, {}, 16),
        (None, {"scaling.type": "none"}, 32),
        ({"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}, {"scale_linear": 2.0}, 16),
        (
            {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
            {"scaling.type": "linear", "scaling.factor": 2.0},
            16,
        ),
        (YARN, {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 128}, 16),
        (LLAMA3, {}, 16),
    ],
)
def test_a_converted_model_computes_what_it_did(
    tmp_path: Path, rope: dict[str, Any] | None, fields: dict[str, Any], head_dim: int
) -> None:
    parts = [tmp_path / name for name in ("theirs", "ours")]
    for part in parts:
        part.mkdir()
    config = transformers.LlamaConfig(**TINY, head_dim=head_dim, rope_parameters=rope and dict(rope))
    theirs = write_transformers_model(parts[0], config)
    write_gguf(tmp_path / "x.gguf", theirs, fields, {"rope_freqs.weight": _divisors()} if rope is LLAMA3 else {})
    convert(tmp_path / "x.gguf", parts[1])
    with torch.inference_mode():
        expected = theirs(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(logits_in_chunks(parts[1], PROMPT, [17]), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("fields", "tensors", "named"),
    [
        ({"scaling.type": "longrope"}, [], "longrope"),
        ({"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.yarn_log_multiplier": 0.1}, [], "yarn_log"),
        ({"scaling.type": "linear", "scaling.factor": 4.0}, ["rope_freqs.weight"], "rope_freqs"),
        ({"scaling.type": "linear"}, [], "factor"),
        ({"dimension_count": 8}, [], "dimension_count"),
        ({}, ["blk.0.attn_q.bias"], r"attn_q\.bias"),
        ({}, ["blk.0.ffn_gate_exps.weight"], "ffn_gate_exps"),
    ],
)
def test_what_a_llama_config_cannot_say_is_refused(
    tmp_path: Path, fields: dict[str, Any], tensors: list[str], named: str
) -> None:
    theirs = write_transformers_model(tmp_path, transformers.LlamaConfig(**TINY))
    write_gguf(tmp_path / "x.gguf", theirs, fields, {name: np.ones(8, dtype=np.float32) for name in tensors})
    (tmp_path / "ours").mkdir()
    with pytest.raises(ModelFolderError, match=named):
        convert(tmp_path / "x.gguf", tmp_path / "ours")
