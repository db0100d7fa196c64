"""A GGUF file of a llama model -> a folder in Hugging Face format (config, tokenizer, chat template, fp32 weights).

Written once and then loaded like any other model: transformers' own GGUF loader takes tens of seconds, every time.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from replica.model.gguf_config import config_of
from replica.protocol.text import ModelFolderError

_SPECIAL_TOKEN = 3

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


def convert(source: Path, folder: Path) -> None:
    """Writes the model into the existing, empty `folder`. Raises ModelFolderError for what isn't a llama with a
    byte-level BPE tokenizer."""
    reader = gguf.GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama" or fields.get("tokenizer.ggml.model") != "gpt2":
        raise ModelFolderError(f"{source} is no llama model with a byte-level BPE tokenizer")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    divisors = tensors.pop("rope_freqs.weight", None)
    rope_divisors = None if divisors is None else np.asarray(divisors.data, dtype=np.float64).tolist()
    try:
        config = config_of(fields, "output.weight" not in tensors, rope_divisors)
        tokenizer_config = _tokenizer_config(fields)
    except KeyError as error:
        raise ModelFolderError(f"{source} has no field {error}") from error
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"eos_token_id": config["eos_token_id"]})
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    _tokenizer(fields).save(str(folder / "tokenizer.json"))
    weights = {_weight_name(name): _dequantize(tensor, config) for name, tensor in tensors.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    tokens = fields["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "model_max_length": int(fields["llama.context_length"]),
        "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"],
    }


def _tokenizer(fields: dict[str, Any]) -> Tokenizer:
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(str(fields.get("tokenizer.ggml.pre", "default")))
    tokenizer.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == _SPECIAL_TOKEN
        ]
    )
    return tokenizer


def _pre_tokenizer(kind: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    if kind in ("gpt-2", "default"):
        return words
    if kind == "llama-bpe":
        pattern = (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])
    raise ModelFolderError(f"the GGUF file's pre-tokenizer {kind!r} is not known here")


def _weight_name(name: str) -> str:
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_NAMES and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.weight"
    if len(parts) == 2 and parts[0] in _TOP_NAMES and parts[1] == "weight":
        return f"{_TOP_NAMES[parts[0]]}.weight"
    raise ModelFolderError(f"the GGUF file's tensor {name} is not known here")


def _dequantize(tensor: Any, config: dict[str, Any]) -> NDArray[np.float32]:
    weight = np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    if tensor.name.endswith("attn_q.weight"):
        return _unpermute(weight, config["num_attention_heads"])
    if tensor.name.endswith("attn_k.weight"):
        return _unpermute(weight, config["num_key_value_heads"])
    return np.ascontiguousarray(weight)


def _unpermute(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """GGUF's llama keeps the rows of each head in pairs (0, d/2), (1, d/2+1), …; Hugging Face's rotate-half RoPE
    wants the two halves one after the other. Left as it is, the model speaks fluent garbage."""
    rows, columns = weight.shape
    paired = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(paired.swapaxes(1, 2).reshape(rows, columns))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
