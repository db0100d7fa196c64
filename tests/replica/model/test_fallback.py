"""Architectures that we don't write ourselves, against transformers, and those that we must refuse."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from kernels import KVDtype
from replica.model.fallback import TransformersModel
from replica.model.registry import load_model
from replica.protocol.text import ModelFolderError, ModelText
from tests.engines import answers, generate, logits_in_chunks, make_engine
from tests.tiny_model import TINY, write_transformers_model

PROMPT = [(7 * index * index + 3 * index) % 290 + 2 for index in range(75)]
CHUNKS = [17, 15, 16, 1, 20, 1]
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8,
    "long_factor": [1 + index / 2 for index in range(8)], "original_max_position_embeddings": 64,
}  # fmt: skip

CASES: dict[str, Any] = {
    "gemma": transformers.GemmaConfig(**TINY, head_dim=16),
    "gemma3 with sliding layers": transformers.Gemma3TextConfig(
        **TINY, head_dim=16, sliding_window=20, layer_types=["sliding_attention", "full_attention"]
    ),
    "phi": transformers.PhiConfig(**TINY),
    "phi3": transformers.Phi3Config(**TINY, sliding_window=20),
    "phi3 longrope": transformers.Phi3Config(**TINY, rope_parameters=LONGROPE, original_max_position_embeddings=64),
    "gpt-neox": transformers.GPTNeoXConfig(**TINY),
    "gpt2": transformers.GPT2Config(**TINY | {"n_positions": 512, "max_position_embeddings": 512}),
    "opt": transformers.OPTConfig(**TINY | {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    "stablelm": transformers.StableLmConfig(**TINY),
    "olmo2": transformers.Olmo2Config(**TINY),
    "granite": transformers.GraniteConfig(
        **TINY, logits_scaling=3.0, residual_multiplier=0.7, embedding_multiplier=2.0, attention_multiplier=0.3
    ),
    "cohere": transformers.CohereConfig(**TINY, logit_scale=0.5),
    "mixtral": transformers.MixtralConfig(**TINY, num_local_experts=4, sliding_window=20),
    "heads of 24": transformers.GemmaConfig(**TINY, head_dim=24),
    "deepseek, keys wider than values": transformers.DeepseekV3Config(
        **TINY | {"num_key_value_heads": 4}, q_lora_rank=24, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=16,
        v_head_dim=12, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2, moe_intermediate_size=32,
        first_k_dense_replace=1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(tmp_path: Path, case: str) -> None:
    theirs = write_transformers_model(tmp_path, CASES[case])
    with torch.inference_mode():
        expected = theirs(torch.tensor([PROMPT])).logits[0]
    assert expected.abs().max() > 0.5, "logits that tell a right answer from a wrong one"
    assert isinstance(load_model(tmp_path, int8=False)[1], TransformersModel)
    torch.testing.assert_close(logits_in_chunks(tmp_path, PROMPT, CHUNKS), expected, atol=1e-4, rtol=1e-5)
    assert ModelText.load(tmp_path).max_context == 512


@pytest.mark.parametrize("case", ["gemma", "phi3", "mixtral", "gpt-neox", "heads of 24"])
@pytest.mark.parametrize(("int8", "kv"), [(True, "fp32"), (False, "int8")])
def test_int8_is_close_to_fp32(tmp_path: Path, case: str, int8: bool, kv: KVDtype) -> None:
    write_transformers_model(tmp_path, CASES[case])
    fp32 = logits_in_chunks(tmp_path, PROMPT, CHUNKS)
    quantised = logits_in_chunks(tmp_path, PROMPT, CHUNKS, int8, kv)
    assert 0 < (quantised - fp32).norm() / fp32.norm() < 0.1


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_an_engine_s_greedy_answers_equal_transformers(tmp_path: Path, prefix_cache: bool) -> None:
    theirs = write_transformers_model(tmp_path, CASES["gemma3 with sliding layers"])
    prompts = [PROMPT, PROMPT[:40] + PROMPT[60:], PROMPT[30:48]]
    engine = make_engine(tmp_path, max_step_tokens=17, prefix_cache=prefix_cache)
    for prompt, ours in zip(prompts, answers(generate(engine, prompts, max_tokens=16)), strict=True):
        ids = torch.tensor([prompt])
        expected = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False, eos_token_id=None,
            pad_token_id=0,
        )  # fmt: skip
        assert ours == expected[0, len(prompt) :].tolist()


REFUSED: dict[str, tuple[Any, str]] = {
    "softcap": (transformers.Gemma2Config(**TINY, head_dim=16), "softcap"),
    "sinks": (
        transformers.GptOssConfig(
            **TINY, head_dim=16, num_local_experts=4, rope_parameters={"rope_type": "default", "rope_theta": 1e4}
        ),
        "s_aux",
    ),
    "recurrent": (transformers.MambaConfig(vocab_size=300, hidden_size=64, num_hidden_layers=2), "recurrent state"),
    "layers with a state": (
        transformers.Lfm2Config(**TINY, layer_types=["conv", "full_attention"]),
        "state of their own",
    ),
    "alibi": (transformers.BloomConfig(vocab_size=300, hidden_size=64, n_layer=2, n_head=4), "max_position_embeddings"),
    "attention of its own": (transformers.FalconConfig(**TINY), "attention interface"),
    "chunks": (
        transformers.Llama4TextConfig(
            **TINY, head_dim=16, attention_chunk_size=64, num_local_experts=2, intermediate_size_mlp=96
        ),
        "Llama4ForCausalLM",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_paged_attention_cannot_do_is_refused(tmp_path: Path, case: str) -> None:
    config, named = REFUSED[case]
    write_transformers_model(tmp_path, config)
    with pytest.raises(ModelFolderError, match=named):
        load_model(tmp_path, int8=False)


def test_an_encoder_with_a_decoder_is_refused(tmp_path: Path) -> None:
    config = transformers.T5Config(vocab_size=300, d_model=64, d_kv=16, num_layers=2, num_heads=4)
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(ModelFolderError, match="encoder"):
        load_model(tmp_path, int8=False)


def test_weights_that_are_missing_are_not_made_up(tmp_path: Path) -> None:
    write_transformers_model(tmp_path, CASES["gemma"])
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelFolderError, match=r"no weight model\.layers\.1\.mlp\.up_proj"):
        load_model(tmp_path, int8=False)


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    config = {"architectures": ["Own"], "model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ModelFolderError, match="Own"):
        load_model(tmp_path, int8=False)


class ShiftConfig(transformers.LlamaConfig):  # type: ignore[no-untyped-call]
    model_type = "shift"


class ShiftForCausalLM(transformers.LlamaForCausalLM):  # type: ignore[no-untyped-call]
    """Its first layer adds the token before, as convolutions and token shifts do: a state that isn't K and V."""

    config_class = ShiftConfig

    def __init__(self, config: ShiftConfig) -> None:
        super().__init__(config)
        self.model.layers[0].register_forward_pre_hook(lambda _, given: (given[0] + given[0].roll(1, dims=1),))


def test_the_check_at_load_notices_what_passes_between_tokens_beside_attention(tmp_path: Path) -> None:
    transformers.AutoConfig.register("shift", ShiftConfig, exist_ok=True)
    transformers.AutoModelForCausalLM.register(ShiftConfig, ShiftForCausalLM, exist_ok=True)
    write_transformers_model(tmp_path, ShiftConfig(**TINY))
    with pytest.raises(ModelFolderError, match="logits differ"):
        load_model(tmp_path, int8=False)
