"""The Llama architecture (Touvron et al. 2023): pre-norm, rotary positions, grouped-query attention, SwiGLU."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

import kernels
from replica.attention.batch import AttentionBatch
from replica.cache.kv_pool import KVPool
from replica.model.config import ModelConfig
from replica.model.layers import Linear, make_linear, rotary_tables
from replica.model.weights import WeightFiles


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    attention_norm: torch.Tensor
    qkv: Linear
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear

    @classmethod
    def load(cls, files: WeightFiles, index: int, int8: bool) -> "LlamaLayer":
        def weight(name: str) -> torch.Tensor:
            return files.load(f"model.layers.{index}.{name}.weight")

        qkv = torch.cat([weight(f"self_attn.{part}_proj") for part in "qkv"])
        gate_up = torch.cat([weight("mlp.gate_proj"), weight("mlp.up_proj")])
        return cls(
            attention_norm=weight("input_layernorm"),
            qkv=make_linear(qkv, int8),
            output=make_linear(weight("self_attn.o_proj"), int8),
            mlp_norm=weight("post_attention_layernorm"),
            gate_up=make_linear(gate_up, int8),
            down=make_linear(weight("mlp.down_proj"), int8),
        )


class Llama:
    def __init__(self, config: ModelConfig, files: WeightFiles, int8: bool) -> None:
        """Raises ModelFolderError where a weight is missing."""
        self._config = config
        self._embedding = files.load("model.embed_tokens.weight")
        self._layers = [LlamaLayer.load(files, index, int8) for index in range(config.num_layers)]
        self._norm = files.load("model.norm.weight")
        head = self._embedding if config.tied_embeddings else files.load("lm_head.weight")
        self._head = make_linear(head, int8)
        self._cos, self._sin = rotary_tables(config.head_dim, config.max_context, config.rope_theta)

    def forward(self, tokens: torch.Tensor, batch: AttentionBatch, pool: KVPool) -> torch.Tensor:
        """tokens [rows], int64 -> hidden states [rows, hidden]; K and V of all rows are written to the pool."""
        residual = F.embedding(tokens, self._embedding)
        normed = kernels.rms_norm(residual, self._layers[0].attention_norm, self._config.rms_norm_eps)
        for index, layer in enumerate(self._layers):
            attended = self._attention(index, layer.qkv(normed), batch, pool)
            normed = self._add_norm(layer.output(attended), residual, layer.mlp_norm)
            expanded = layer.down(kernels.silu_mul(layer.gate_up(normed)))
            last = index == len(self._layers) - 1
            normed = self._add_norm(expanded, residual, self._norm if last else self._layers[index + 1].attention_norm)
        return normed

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [rows, hidden] -> [rows, vocabulary]."""
        return self._head(hidden)

    def _attention(self, index: int, qkv: torch.Tensor, batch: AttentionBatch, pool: KVPool) -> torch.Tensor:
        keys, values = pool.keys[index], pool.values[index]
        q = kernels.rope_write_kv(
            qkv, self._cos, self._sin, batch.positions, batch.slots, keys, values, self._config.num_heads
        )
        scale = 1 / math.sqrt(self._config.head_dim)
        attended = kernels.paged_attention(q, keys, values, batch.page_table, batch.row_seq, batch.row_len, scale)
        return attended.view(len(attended), -1)

    def _add_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Adds x to the residual stream in place and normalises it."""
        return kernels.add_rms_norm(x, residual, weight, self._config.rms_norm_eps)
