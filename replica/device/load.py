"""A folder's model, on a device."""

from dataclasses import replace
from pathlib import Path

import torch

import kernels.device
from replica.device.weights import WHOLE, Combine, DeviceWeights, Shard
from replica.model.config import ConfigFields, ModelConfig
from replica.model.decoder import Decoder, DecoderConfig
from replica.model.registry import own_architecture, own_names
from replica.model.weights import Split, WeightFiles
from replica.protocol.text import ModelFolderError

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def alone(split: Split, outputs: torch.Tensor) -> torch.Tensor:
    """What there is to combine where nobody shares."""
    return outputs


def load_device_model(
    folder: Path, device: torch.device, dtype: torch.dtype, shard: Shard = WHOLE, combine: Combine = alone
) -> tuple[ModelConfig, Decoder]:
    """The rank's part of the model, and its shape. Raises ModelFolderError."""
    fields, config = read_config(folder)
    config = share(config, shard)
    with DeviceWeights(WeightFiles(folder), device, dtype, shard, combine) as weights:
        model = Decoder(config, fields, weights, kernels.device)
        weights.report()
    return config.model, model


def read_config(folder: Path) -> tuple[ConfigFields, DecoderConfig]:
    """Raises ModelFolderError, also where the model can't be computed on a device."""
    fields = ConfigFields.load(folder)
    name, architecture = own_architecture(fields)
    if architecture is None:
        raise ModelFolderError(
            f"device: {name} would run through transformers' own code, which here serves on a CPU alone; on a device "
            f"there are {', '.join(own_names())}"
        )
    fields = fields.with_defaults(architecture.defaults)
    return fields, DecoderConfig.read(fields, architecture)


def share(config: DecoderConfig, shard: Shard) -> DecoderConfig:
    """With the heads of one rank. Raises ModelFolderError where they can't be divided."""
    heads = shard.part(config.num_heads, "num_attention_heads")
    kv_heads = shard.part(config.model.num_kv_heads, "num_key_value_heads")
    model = replace(config.model, num_kv_heads=kv_heads.stop - kv_heads.start)
    return replace(config, num_heads=heads.stop - heads.start, model=model)
