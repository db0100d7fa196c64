"""The metadata of a llama GGUF file -> a config.json. What it says that the config can't is refused."""

from collections.abc import Mapping
from typing import Any

from replica.protocol.text import ModelFolderError

_YARN_NAMES = {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}


def config_of(fields: Mapping[str, Any], tied: bool, rope_divisors: list[float] | None) -> dict[str, Any]:
    """`rope_divisors` are the file's tensor `rope_freqs`. Raises ModelFolderError, and KeyError for a missing field."""
    heads = int(fields["llama.attention.head_count"])
    head_dim = _head_dim(fields, heads)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_size": int(fields["llama.embedding_length"]),
        "intermediate_size": int(fields["llama.feed_forward_length"]),
        "num_hidden_layers": int(fields["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(fields.get("llama.attention.head_count_kv", heads)),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "vocab_size": int(fields.get("llama.vocab_size") or len(fields["tokenizer.ggml.tokens"])),
        "max_position_embeddings": int(fields["llama.context_length"]),
        "rms_norm_eps": float(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": float(fields.get("llama.rope.freq_base", 10_000.0)),
        "tie_word_embeddings": tied,
        "bos_token_id": int(fields["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(fields["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(fields["tokenizer.ggml.padding_token_id"]),
    }
    scaling = _rope_scaling(fields, rope_divisors)
    return config | ({"rope_scaling": scaling} if scaling else {})


def _head_dim(fields: Mapping[str, Any], heads: int) -> int:
    dim = int(fields.get("llama.attention.key_length") or int(fields["llama.embedding_length"]) // heads)
    for name in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if int(fields.get(name, dim)) != dim:
            raise ModelFolderError(f"the GGUF file's {name} is {fields[name]}, with heads of {dim}: not supported")
    return dim


def _rope_scaling(fields: Mapping[str, Any], divisors: list[float] | None) -> dict[str, Any] | None:
    prefix = "llama.rope.scaling."
    declared = {name.removeprefix(prefix): value for name, value in fields.items() if name.startswith(prefix)}
    # The name of the factor in old files, where it could only be linear.
    if "llama.rope.scale_linear" in fields:
        declared = {"type": "linear", "factor": fields["llama.rope.scale_linear"]} | declared
    # Says where the weights come from, not what to compute.
    declared.pop("finetuned", None)
    kind = declared.pop("type", "none")
    if divisors is not None:
        if kind != "none":
            raise ModelFolderError(f"the GGUF file has rope_freqs beside a rope scaling of type {kind!r}")
        return _divided(divisors, int(fields["llama.context_length"]))
    if kind == "none":
        return None
    known = {"linear": {"factor"}, "yarn": {"factor", "original_context_length", *_YARN_NAMES}}
    if kind not in known or not declared.keys() <= known[kind]:
        raise ModelFolderError(f"the GGUF file's rope scaling is not known here: {kind!r} with {sorted(declared)}")
    scaling = {"rope_type": kind, "factor": float(declared["factor"])}
    scaling |= {ours: float(declared[name]) for name, ours in _YARN_NAMES.items() if name in declared}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = int(declared["original_context_length"])
    return scaling


def _divided(divisors: list[float], context: int) -> dict[str, Any]:
    """Llama 3's scaling comes as one divisor for each frequency, which is what longrope has, for any length alike."""
    return {
        "rope_type": "longrope",
        "short_factor": divisors,
        "long_factor": divisors,
        "attention_factor": 1.0,
        "original_max_position_embeddings": context,
    }
