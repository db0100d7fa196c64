"""Llama, Mistral, Qwen2 and Qwen3 against transformers, on tiny models of random weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kernels import KVDtype
from tests.engines import answers, generate, logits_in_chunks, make_engine
from tests.tiny_model import TINY, write_transformers_model

PROMPT = [(7 * index * index + 3 * index) % 290 + 2 for index in range(75)]
CHUNKS = [17, 15, 16, 1, 20, 1]

CASES = {
    "llama": transformers.LlamaConfig(**TINY),
    "llama tied": transformers.LlamaConfig(**TINY, tie_word_embeddings=True),
    "llama attention bias": transformers.LlamaConfig(**TINY, attention_bias=True),
    "llama mlp bias": transformers.LlamaConfig(**TINY, mlp_bias=True),
    "llama head_dim": transformers.LlamaConfig(**TINY, head_dim=32),
    "llama multi-query": transformers.LlamaConfig(**TINY | {"num_key_value_heads": 1}),
    "llama multi-head": transformers.LlamaConfig(**TINY | {"num_key_value_heads": 4}),
    "mistral": transformers.MistralConfig(**TINY, sliding_window=20),
    "mistral window of a page": transformers.MistralConfig(**TINY, sliding_window=16),
    "mistral full": transformers.MistralConfig(**TINY, sliding_window=None),
    "qwen2": transformers.Qwen2Config(**TINY),
    "qwen2 upper layers sliding": transformers.Qwen2Config(
        **TINY, use_sliding_window=True, sliding_window=20, max_window_layers=1
    ),
    "qwen2 layer types": transformers.Qwen2Config(
        **TINY, use_sliding_window=True, sliding_window=9, layer_types=["sliding_attention", "full_attention"]
    ),
    "qwen3": transformers.Qwen3Config(**TINY, head_dim=32),
    "qwen3 bias, tied, sliding": transformers.Qwen3Config(
        **TINY, head_dim=16, attention_bias=True, tie_word_embeddings=True,
        use_sliding_window=True, sliding_window=20, max_window_layers=1,
    ),
}  # fmt: skip
ROPE: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 128},
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128,
    },
    "longrope": {
        "short_factor": [1.0] * 8, "long_factor": [1 + index / 2 for index in range(8)],
        "original_max_position_embeddings": 64,
    },
}  # fmt: skip
CASES |= {
    f"llama {kind}": transformers.LlamaConfig(**TINY, rope_parameters={"rope_type": kind, "rope_theta": 5e3} | fields)
    for kind, fields in ROPE.items()
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(tmp_path: Path, case: str) -> None:
    theirs = write_transformers_model(tmp_path, CASES[case])
    with torch.inference_mode():
        expected = theirs(torch.tensor([PROMPT])).logits[0]
    assert expected.abs().max() > 1, "logits that tell a right answer from a wrong one"
    torch.testing.assert_close(logits_in_chunks(tmp_path, PROMPT, CHUNKS), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", ["llama attention bias", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize(("int8", "kv"), [(True, "fp32"), (False, "int8")])
def test_int8_is_close_to_fp32(tmp_path: Path, case: str, int8: bool, kv: KVDtype) -> None:
    write_transformers_model(tmp_path, CASES[case])
    fp32 = logits_in_chunks(tmp_path, PROMPT, CHUNKS)
    quantised = logits_in_chunks(tmp_path, PROMPT, CHUNKS, int8, kv)
    assert 0 < (quantised - fp32).norm() / fp32.norm() < 0.1


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]], list[list[int]]]:
    """A Mistral with a window of 20, prompts, two of which share 40 tokens, and transformers' greedy answers."""
    folder = tmp_path_factory.mktemp("mistral")
    theirs: Any = write_transformers_model(folder, CASES["mistral"])
    prompts = [PROMPT, PROMPT[:40] + PROMPT[60:], PROMPT[30:48]]
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        output = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, eos_token_id=None,
            pad_token_id=0,
        )  # fmt: skip
        expected.append(output[0, len(prompt) :].tolist())
    return folder, prompts, expected


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("chunk", [1, 15, 16, 17, 64, 1024])
def test_a_window_s_greedy_answers_equal_transformers(
    sliding: tuple[Path, list[list[int]], list[list[int]]], chunk: int, prefix_cache: bool
) -> None:
    folder, prompts, expected = sliding
    engine = make_engine(folder, max_step_tokens=chunk, prefix_cache=prefix_cache)
    assert answers(generate(engine, prompts, max_tokens=24)) == expected
    again = generate(engine, prompts, max_tokens=24)
    assert answers(again) == expected
    assert (again[0].num_cached > 0) == prefix_cache
