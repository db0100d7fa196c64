"""The real model against transformers, and int8 against fp32."""

import math
from pathlib import Path

import pytest
import torch

import kernels
from kernels import KVDtype
from replica.attention.batch import AttentionBatch
from replica.cache.kv_pool import KVPool
from replica.model.registry import load_model
from replica.model.source import packaged_gguf
from replica.protocol.text import ModelText
from replica.sequence import Chunk, SamplingParams, Sequence
from tests.engines import answers, generate, make_engine

pytestmark = pytest.mark.model

TOKENS = 32

QUESTIONS = [
    "What is the capital of France?",
    "Name three rivers.",
    "Why is the sky blue?",
    "Write a haiku about rain.",
    "What is 12 times 12?",
    "Translate 'good morning' into German.",
    "Who wrote Hamlet?",
    "List the planets of the solar system.",
    "What does a lift attendant do?",
    "Give me a recipe for tomato soup.",
    "Explain recursion to a child.",
    "What is a step-free entrance?",
    "How long is a marathon?",
    "Describe the smell of coffee.",
    "What is the boiling point of water?",
    "Tell me a joke about cats.",
    "What are prime numbers?",
    "How do I boil an egg?",
    "What is photosynthesis?",
    "Say hello in five languages.",
]

PERPLEXITY_TEXT = """Accessible travel begins long before the journey itself. A traveller who uses a wheelchair needs to
know whether the entrance has a ramp, how wide the doors are, and whether the lift reaches every floor. Hotels often
describe a room as accessible because the bathroom has a grab rail, but a grab rail does not help when the shower has a
step of twenty centimetres. The most useful descriptions give measurements: the height of the bed, the space beside the
toilet, the slope of the ramp. Photographs help as well, and so does an honest sentence about what is missing. Cities
differ a great deal. In some, every tram has a low floor and every crossing a lowered kerb; in others the old town is a
maze of cobbles and stairs. Trains usually need to be booked a day ahead so that staff can bring a ramp. When something
goes wrong, a phone number that is answered by a person is worth more than any certificate on the wall. The best hosts
ask a simple question before arrival: what do you need from us? Then they write the answer down and act on it."""


@pytest.fixture(scope="module")
def prompts(model_text: ModelText) -> list[list[int]]:
    return [model_text.encode_chat(model_text.render([{"role": "user", "content": q}])) for q in QUESTIONS]


@pytest.fixture(scope="module")
def expected(prompts: list[list[int]]) -> list[list[int]]:
    """Greedy, by transformers from the GGUF file itself: our converted folder would share a wrong permutation of the
    q and k rows with us."""
    from transformers import AutoModelForCausalLM

    source = packaged_gguf()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(str(source.parent), gguf_file=source.name, dtype=torch.float32)
    longest = max(map(len, prompts))
    ids = torch.tensor([[2] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    output = model.generate(ids, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False, pad_token_id=2)
    return [_until_stop(row[longest:].tolist()) for row in output]


def _until_stop(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(2) + 1] if 2 in tokens else tokens


@pytest.mark.parametrize(("together", "prefix_cache"), [(True, True), (True, False), (False, True)])
def test_greedy_answers_equal_transformers(
    model_folder: Path, prompts: list[list[int]], expected: list[list[int]], together: bool, prefix_cache: bool
) -> None:
    # Threads that wait for each other stand still where other tests take their cores.
    kernels.set_num_threads(1)
    torch.set_num_threads(1)
    engine = make_engine(model_folder, num_pages=256, prefix_cache=prefix_cache)
    stop = frozenset({2})
    if together:
        ours = answers(generate(engine, prompts, max_tokens=TOKENS, stop_token_ids=stop))
    else:
        ours = [answers(generate(engine, [prompt], max_tokens=TOKENS, stop_token_ids=stop))[0] for prompt in prompts]
    assert ours == expected


def _perplexity(folder: Path, tokens: list[int], int8: bool, kv: KVDtype) -> float:
    config, model = load_model(folder, int8)
    sequence = Sequence("s", tokens, SamplingParams(max_tokens=1), namespace=0)
    sequence.pages = list(range(-(-len(tokens) // 16)))
    pool = KVPool.allocate(config, len(sequence.pages), kv)
    with torch.inference_mode():
        batch = AttentionBatch.build([Chunk(sequence, 0, len(tokens))])
        logits = model.logits(model.forward(torch.tensor(tokens), batch, pool))
        loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(tokens[1:]))
    return math.exp(loss.item())


def test_int8_costs_two_percent_of_perplexity_at_most_and_int8_kv_one_more(
    model_folder: Path, model_text: ModelText
) -> None:
    tokens = model_text.encode_plain(PERPLEXITY_TEXT)
    fp32 = _perplexity(model_folder, tokens, int8=False, kv="fp32")
    mixed = _perplexity(model_folder, tokens, int8=True, kv="fp32")
    int8 = _perplexity(model_folder, tokens, int8=True, kv="int8")
    print(f"perplexity: fp32 {fp32:.3f}, int8 weights {mixed:.3f}, int8 KV too {int8:.3f}")
    assert fp32 < 60, "a model that makes sense of English"
    assert abs(mixed / fp32 - 1) < 0.02 and abs(int8 / mixed - 1) < 0.01
