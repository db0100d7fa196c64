"""Real steps over made-up prompts of many sizes: touches all code and memory once, and fits the cost model."""

from collections.abc import Sequence as SequenceOf

import torch

from replica.engine_base import EngineBase
from replica.protocol.hashing import BLOCK_SIZE
from replica.sequence import SamplingParams, Sequence

_DECODE_STEPS = 2


def warm_up(
    engine: EngineBase, max_context: int, vocab_size: int, prefills: SequenceOf[int], decodes: SequenceOf[int]
) -> None:
    """Prompts of these lengths, one by one; then so many short ones at a time."""
    generator = torch.Generator().manual_seed(0)

    def run(count: int, length: int, steps: int) -> None:
        for index in range(count):
            prompt = torch.randint(vocab_size, (min(length, max_context - steps),), generator=generator).tolist()
            engine.add(Sequence(f"warm-up-{index}", prompt, SamplingParams(max_tokens=steps, temperature=0), 0))
        while engine.has_work:
            engine.step()

    for length in prefills:
        run(1, length, 1)
    for count in decodes:
        run(count, BLOCK_SIZE, _DECODE_STEPS)
