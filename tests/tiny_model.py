"""A model folder in Hugging Face format, of random weights and with a byte-level tokenizer, for tests."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB = 300
LAYERS = 2
HIDDEN = 48
HEADS = 3
HEAD_DIM = 16
FFN = 64
CONTEXT = 512

CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def write_tiny_model(folder: Path, seed: int = 0) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    _tokenizer().save(str(folder / "tokenizer.json"))
    save_file(_weights(seed), folder / "model.safetensors")


TINY: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 1,
}
"""Fields that the configs of transformers share."""


def write_transformers_model(folder: Path, config: Any, seed: int = 0) -> Any:
    """A model of any transformers config, saved by transformers itself; returned as it is, the truth to compare with.

    The weights are larger than transformers' own random ones, whose attention is next to uniform and would hide what
    it is given to attend to."""
    from transformers import AutoModelForCausalLM

    generator = torch.Generator().manual_seed(seed)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * 1.5 * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(noise * 0.2)
    model.save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    _tokenizer().save(str(folder / "tokenizer.json"))
    return model


def _tokenizer() -> Tokenizer:
    special = ["<|start|>", "<|end|>"]
    tokens = special + sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def _weights(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).mul(float(shape[-1]) ** -0.5)

    weights = {
        # Large embeddings make the logits of random weights spread, so that greedy choices are no near ties.
        "model.embed_tokens.weight": torch.randn(VOCAB, HIDDEN, generator=generator),
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": random(VOCAB, HIDDEN) * 4,
    }
    for index in range(LAYERS):
        layer = f"model.layers.{index}."
        weights |= {
            f"{layer}input_layernorm.weight": torch.ones(HIDDEN),
            f"{layer}post_attention_layernorm.weight": torch.ones(HIDDEN),
            f"{layer}self_attn.q_proj.weight": random(HEADS * HEAD_DIM, HIDDEN),
            f"{layer}self_attn.k_proj.weight": random(HEAD_DIM, HIDDEN),
            f"{layer}self_attn.v_proj.weight": random(HEAD_DIM, HIDDEN),
            f"{layer}self_attn.o_proj.weight": random(HIDDEN, HEADS * HEAD_DIM),
            f"{layer}mlp.gate_proj.weight": random(FFN, HIDDEN),
            f"{layer}mlp.up_proj.weight": random(FFN, HIDDEN),
            f"{layer}mlp.down_proj.weight": random(HIDDEN, FFN),
        }
    return weights
