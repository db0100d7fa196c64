"""Any other decoder-only model: transformers' own modelling code, with our paged attention in place of its own.

That this computes what the model means is checked at each load, on a few tokens, against its own eager attention; what
differs is refused.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from kernels.base import MAX_HEAD_DIM
from replica.attention.batch import AttentionBatch
from replica.cache.kv_pool import KVPool
from replica.model.config import ConfigFields, ModelConfig, architecture_of
from replica.model.layers import make_linear
from replica.model.paged_hook import OBSERVED, PAGED, PagedHook, UnsupportedModel, register
from replica.protocol.text import ModelFolderError
from replica.sequence import Chunk, SamplingParams, Sequence

# Of the largest logit.
_TOLERANCE = 1e-3
_INT8_TOLERANCE = 0.5

log = logging.getLogger(__name__)

# What a model's code raises when it meets what it wasn't written for.
_FAILURES = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError, RuntimeError, SafetensorError,
    StrictDataclassError, TypeError, ValueError,
)  # fmt: skip


class TransformersModel:
    """A causal language model of transformers, split in two where its body ends, so that logits are computed only of
    the rows that need them."""

    def __init__(self, whole: Any, hook: PagedHook, output_type: type[Any]) -> None:
        """`output_type` is what the body returns."""
        self._body = whole.get_decoder()
        self._head = whole
        self._hook = hook
        # What is left of the whole does what comes after the body: the head, and any scaling of logits.
        for parent in list(whole.modules()):
            for name, child in list(parent.named_children()):
                if child is self._body:
                    setattr(parent, name, _Body(output_type))

    def forward(self, tokens: torch.Tensor, batch: AttentionBatch, pool: KVPool) -> torch.Tensor:
        """tokens [rows], int64 -> hidden states [rows, hidden]; K and V of all rows are written to the pool."""
        self._hook.start(batch, pool)
        output = self._body(input_ids=tokens[None], position_ids=batch.positions[None].long(), use_cache=False)
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [rows, hidden] -> [rows, vocabulary]."""
        logits: torch.Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits[0]
        return logits

    def to_int8(self) -> None:
        """Every plain linear layer; experts and routers, which are none, stay in fp32."""
        for root in (self._body, self._head):
            for parent in list(root.modules()):
                for name, child in list(parent.named_children()):
                    if type(child) is nn.Linear:
                        setattr(parent, name, _Int8Linear(child))


class _Body(nn.Module):
    """Passes on the hidden states that are already computed."""

    def __init__(self, output_type: type[Any]) -> None:
        super().__init__()
        self._output_type = output_type

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> Any:
        return self._output_type(last_hidden_state=inputs_embeds)


class _Int8Linear(nn.Module):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        bias = None if linear.bias is None else linear.bias.detach()
        self._linear = make_linear(linear.weight.detach().contiguous(), int8=True, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._linear(x.reshape(-1, x.shape[-1]).contiguous()).view(*x.shape[:-1], -1)


@torch.inference_mode()
def load_fallback(folder: Path, fields: ConfigFields, int8: bool) -> tuple[ModelConfig, TransformersModel]:
    """Raises ModelFolderError, which names what the model has that can't be served."""
    name = architecture_of(fields)
    try:
        whole = _load(folder, fields)
        config, hook, output_type = _observe(whole, name)
        _settle_longrope(whole, config.max_context)
        trial = _Trial(config)
        expected = trial.eager(whole)
        whole.config._attn_implementation = PAGED
        model = TransformersModel(whole, hook, output_type)
        _compare(trial.paged(model), expected, _TOLERANCE)
        if int8:
            model.to_int8()
            _compare(trial.paged(model), expected, _INT8_TOLERANCE)
    except _FAILURES as error:
        reason = str(error).strip().split("\n")[0]
        if not isinstance(error, UnsupportedModel):
            reason = f"{type(error).__name__}: {reason}"
        raise ModelFolderError(f"{folder}: architecture {name} is not supported: {reason}") from error
    log.info("%s runs through transformers' code, with our attention and cache", name)
    return config, model


def _load(folder: Path, fields: ConfigFields) -> Any:
    if fields.has("quantization_config"):
        raise UnsupportedModel("weights that are stored quantised (quantization_config)")
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    if config.is_encoder_decoder:
        raise UnsupportedModel("it is an encoder with a decoder")
    known: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in known or known[type(config)].__name__ != architecture_of(fields):
        raise UnsupportedModel("transformers has no such causal language model")
    auto: Any = transformers.AutoModelForCausalLM
    whole, info = auto.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager", local_files_only=True,
        use_safetensors=True, output_loading_info=True,
    )  # fmt: skip
    absent = sorted(info["missing_keys"]) or sorted(map(str, info["mismatched_keys"]))
    if absent:
        raise UnsupportedModel(f"the folder has no weight {absent[0]}")
    return whole.eval()


def _settle_longrope(whole: nn.Module, context: int) -> None:
    """One set of factors for good, as in `rope.py`: transformers chooses by the longest sequence of a batch."""
    for module in whole.modules():
        kind: Any = getattr(module, "rope_type", None)
        if isinstance(kind, dict) and "longrope" in kind.values():
            raise UnsupportedModel("its rope scaling is longrope for some layers")
        if kind == "longrope":
            rope: Any = module
            frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](rope.config, None, seq_len=context)
            rope.inv_freq.copy_(frequencies)
            rope.original_inv_freq.copy_(frequencies)


def _observe(whole: Any, name: str) -> tuple[ModelConfig, PagedHook, type[Any]]:
    """What the layers are, by one forward whose attention only takes notes."""
    register()
    hook = PagedHook(whole)
    if whole.get_decoder() is whole:
        raise UnsupportedModel("it has no body apart from its head")
    whole.config._attn_implementation = OBSERVED
    ids = torch.arange(4)[None]
    output = whole.get_decoder()(input_ids=ids, position_ids=ids, use_cache=False)
    shapes = {(layer.kv_heads, layer.padded_dim) for layer in hook.layers.values()}
    if not shapes:
        raise UnsupportedModel(
            "its layers hold a recurrent state, or don't go through transformers' attention interface"
        )
    if sorted(hook.layers) != list(range(whole.config.num_hidden_layers)):
        raise UnsupportedModel("some of its layers don't attend, and may carry a state of their own")
    if len(shapes) > 1:
        raise UnsupportedModel("its layers differ in their heads")
    ((kv_heads, dim),) = shapes
    if dim > MAX_HEAD_DIM:
        raise UnsupportedModel(f"its heads are larger than {MAX_HEAD_DIM}")
    config = ModelConfig(
        architecture=name,
        vocab_size=whole.config.vocab_size,
        num_layers=len(hook.layers),
        num_kv_heads=kv_heads,
        head_dim=dim,
        max_context=whole.config.max_position_embeddings,
    )
    return config, hook, type(output)


class _Trial:
    """Two made-up sequences: one at the start of the context, in three steps of which the first also holds the other,
    which is at its end. What depends on neighbours in a batch, on what was computed a step before other than by way of
    K and V, or on the longest position of a batch, shows itself."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        spread = torch.linspace(1, config.vocab_size - 1, 11).long()
        self._near, self._far = spread[:8], spread[8:]
        self._far_start = config.max_context - len(self._far)

    def eager(self, whole: Any) -> torch.Tensor:
        """Logits of all 11 tokens, in the order of `paged`."""
        whole.config._attn_implementation = "eager"
        near = whole(input_ids=self._near[None], position_ids=torch.arange(8)[None], use_cache=False).logits[0]
        positions = torch.arange(self._far_start, self._config.max_context)[None]
        far = whole(input_ids=self._far[None], position_ids=positions, use_cache=False).logits[0]
        return torch.cat([near[:5], far, near[5:]])

    def paged(self, model: TransformersModel) -> torch.Tensor:
        pool = KVPool.allocate(self._config, 2)
        params = SamplingParams(max_tokens=1)
        near = Sequence("near", self._near.tolist(), params, namespace=0)
        far = Sequence("far", self._far.tolist(), params, namespace=0)
        near.pages, far.pages = [0], [1]
        first = AttentionBatch.build([Chunk(near, 0, 5), Chunk(far, 0, 3)])
        shift = torch.tensor([0] * 5 + [self._far_start] * 3, dtype=torch.int32)
        shifted = replace(first, positions=first.positions + shift)
        hidden = [
            model.forward(torch.cat([self._near[:5], self._far]), shifted, pool),
            model.forward(self._near[5:7], AttentionBatch.build([Chunk(near, 5, 2)]), pool),
            model.forward(self._near[7:], AttentionBatch.build([Chunk(near, 7, 1)]), pool),
        ]
        return model.logits(torch.cat(hidden))


def _compare(ours: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    difference = float((ours - expected).abs().max() / expected.abs().max())
    # So that NaN fails too.
    if not difference <= tolerance:
        raise UnsupportedModel(
            f"with paged attention its logits differ by {difference:.2g} of the largest from those of its own attention"
        )
