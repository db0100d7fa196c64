"""The decoder that Llama and its kin share: pre-norm, rotary positions, grouped-query attention, SwiGLU.

What an architecture does besides is data (`Variant`), given by its own file: `llama.py`, `mistral.py`, `qwen2.py`,
`qwen3.py`. Where it is computed is for others to say: the weights, the elementwise kernels (`Ops`) and attention (a
step's batch) are handed in.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from kernels.base import MAX_HEAD_DIM
from replica.attention.batch import KV, Attention, Layers
from replica.model.config import HEAD_DIM_STEP, ConfigFields, ModelConfig, architecture_of
from replica.model.layers import Int8Linear, Linear, make_mlp
from replica.model.ops import CPU_OPS, Ops
from replica.model.rope import rotary_tables
from replica.model.weights import Split, Weights


@dataclass(frozen=True, slots=True)
class Variant:
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMS norm of each head of q and k, before they are rotated."""
    windows: tuple[int, ...] = ()
    """A layer: how many tokens a token sees, itself included; 0 for all. Empty: all see all."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One file's contribution: what transformers assumes where a config.json is silent, and what differs."""

    defaults: Mapping[str, Any]
    variant: Callable[[ConfigFields], Variant]


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    model: ModelConfig
    num_heads: int
    rms_norm_eps: float
    tied_embeddings: bool
    variant: Variant

    @classmethod
    def read(cls, fields: ConfigFields, architecture: Architecture) -> "DecoderConfig":
        """`fields` with the defaults. Raises ModelFolderError, also for what would silently compute something else."""
        heads = fields.integer("num_attention_heads")
        kv_heads = fields.integer("num_key_value_heads", heads)
        if fields.text("hidden_act") != "silu":
            raise fields.error(f"the activation {fields.text('hidden_act')!r} is not supported for this architecture")
        if fields.has("quantization_config"):
            raise fields.error("weights that are stored quantised (quantization_config) are not supported")
        model = ModelConfig(
            architecture=architecture_of(fields),
            vocab_size=fields.integer("vocab_size"),
            num_layers=fields.integer("num_hidden_layers"),
            num_kv_heads=kv_heads,
            head_dim=fields.integer("head_dim", fields.integer("hidden_size") // heads),
            max_context=fields.integer("max_position_embeddings"),
        )
        if heads % kv_heads or model.head_dim % HEAD_DIM_STEP or model.head_dim > MAX_HEAD_DIM:
            raise fields.error(
                f"{heads} heads ({kv_heads} for K and V) of dimension {model.head_dim} are not supported"
            )
        return cls(
            model=model,
            num_heads=heads,
            rms_norm_eps=fields.number("rms_norm_eps"),
            tied_embeddings=fields.flag("tie_word_embeddings"),
            variant=architecture.variant(fields),
        )


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    attention_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: Linear
    mlp_norm: torch.Tensor
    mlp: Linear
    window: int

    @classmethod
    def load(cls, weights: Weights, index: int, variant: Variant, ops: Ops) -> "DecoderLayer":
        def full(name: str) -> str:
            return f"model.layers.{index}.{name}"

        def tensor(name: str) -> torch.Tensor:
            return weights.load(full(name))

        def linear(parts: list[str], has_bias: bool, split: Split) -> Linear:
            # Where products are summed over ranks, the bias is added once, to the sum.
            of_bias = Split.ROWS if split is Split.ROWS else Split.NONE
            bias = torch.cat([weights.load(full(f"{part}.bias"), of_bias) for part in parts]) if has_bias else None
            return weights.linear([full(f"{part}.weight") for part in parts], bias, split)

        return cls(
            attention_norm=tensor("input_layernorm.weight"),
            qkv=linear([f"self_attn.{part}_proj" for part in "qkv"], variant.qkv_bias, Split.ROWS),
            q_norm=tensor("self_attn.q_norm.weight") if variant.qk_norm else None,
            k_norm=tensor("self_attn.k_norm.weight") if variant.qk_norm else None,
            output=linear(["self_attn.o_proj"], variant.output_bias, Split.COLUMNS),
            mlp_norm=tensor("post_attention_layernorm.weight"),
            mlp=make_mlp(
                linear(["mlp.gate_proj", "mlp.up_proj"], variant.mlp_bias, Split.ROWS),
                linear(["mlp.down_proj"], variant.mlp_bias, Split.COLUMNS),
                ops.silu_mul,
            ),
            window=variant.windows[index] if variant.windows else 0,
        )


class Decoder:
    def __init__(self, config: DecoderConfig, fields: ConfigFields, weights: Weights, ops: Ops = CPU_OPS) -> None:
        """Raises ModelFolderError where a weight is missing."""
        self._config = config
        self._ops = ops
        model = config.model
        self._layers = [DecoderLayer.load(weights, index, config.variant, ops) for index in range(model.num_layers)]
        self._norm = weights.load("model.norm.weight")
        cos, sin = rotary_tables(fields, model.head_dim, model.max_context)
        self._cos, self._sin = cos.to(self._norm.device), sin.to(self._norm.device)
        head = "model.embed_tokens" if config.tied_embeddings else "lm_head"
        self._head = weights.linear([f"{head}.weight"], None, Split.VOCABULARY)
        if config.tied_embeddings and isinstance(self._head, Int8Linear):
            # The head's own rows: a copy in fp32 would be the largest part of the model.
            self._embed: Callable[[torch.Tensor], torch.Tensor] = self._head.weight.rows
        else:
            self._embed = partial(F.embedding, weight=weights.load("model.embed_tokens.weight"))

    def forward(self, tokens: torch.Tensor, batch: Attention[KV], pool: Layers[KV]) -> torch.Tensor:
        """tokens [rows], int64 -> hidden states [rows, hidden]; K and V of all rows are written to the pool."""
        residual = self._embed(tokens)
        normed = self._ops.rms_norm(residual, self._layers[0].attention_norm, self._config.rms_norm_eps)
        for index, layer in enumerate(self._layers):
            attended = self._attention(layer, layer.qkv(normed), batch, pool.layers[index])
            normed = self._add_norm(layer.output(attended), residual, layer.mlp_norm)
            last = index == len(self._layers) - 1
            norm = self._norm if last else self._layers[index + 1].attention_norm
            normed = self._add_norm(layer.mlp(normed), residual, norm)
        return normed

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [rows, hidden] -> [rows, vocabulary]."""
        return self._head(hidden)

    def _attention(self, layer: DecoderLayer, qkv: torch.Tensor, batch: Attention[KV], kv: KV) -> torch.Tensor:
        config = self._config
        if layer.q_norm is not None and layer.k_norm is not None:
            num_kv = config.model.num_kv_heads
            self._ops.norm_heads(qkv, layer.q_norm, layer.k_norm, config.rms_norm_eps, config.num_heads, num_kv)
        scale = 1 / math.sqrt(config.model.head_dim)
        attended = batch.attend(qkv, self._cos, self._sin, kv, config.num_heads, scale, layer.window)
        return attended.view(len(attended), -1)

    def _add_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Adds x to the residual stream in place and normalises it."""
        return self._ops.add_rms_norm(x, residual, weight, self._config.rms_norm_eps)
