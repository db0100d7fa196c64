"""From logits to the next token of each sequence.

Randomness is a function of (seed, position), not a generator's state: a seeded answer doesn't depend on what else is in
the batch, on preemption or on the cache, and goes on unbroken on another replica.
"""

from collections.abc import Sequence as SequenceOf

import torch
import xxhash

from replica.sequence import SamplingParams, Sequence


def sample(logits: torch.Tensor, sequences: SequenceOf[Sequence]) -> list[int]:
    """logits [sequences, vocabulary] -> a token each. Changes the logits of sequences that mustn't end yet."""
    for row, sequence in enumerate(sequences):
        if sequence.num_output < sequence.params.min_tokens:
            logits[row, list(sequence.params.stop_token_ids)] = -torch.inf
    tokens = logits.argmax(dim=-1).tolist()
    for row, sequence in enumerate(sequences):
        if sequence.params.temperature > 0:
            tokens[row] = _draw(logits[row], sequence.params, uniform(sequence.params.seed, len(sequence.tokens)))
    return tokens


def uniform(seed: int, position: int) -> float:
    """In [0, 1), 53 bits."""
    data = (seed % 2**64).to_bytes(8, "little") + position.to_bytes(8, "little")
    return (xxhash.xxh3_64_intdigest(data) >> 11) / 2**53


def _draw(logits: torch.Tensor, params: SamplingParams, point: float) -> int:
    """Inverts the distribution's sum at `point`, over tokens from the likeliest down, cut where top_p is reached."""
    probabilities = torch.softmax(logits.double() / params.temperature, dim=-1)
    # Stable, so that equal probabilities keep the order of their ids.
    ordered, order = probabilities.sort(descending=True, stable=True)
    cumulative = ordered.cumsum(0)
    # The first token that brings the sum to top_p is still in.
    kept = int(torch.searchsorted(cumulative, params.top_p)) + 1
    kept = min(kept, len(ordered))
    target = point * float(cumulative[kept - 1])
    index = int(torch.searchsorted(cumulative[:kept], target, right=True))
    return int(order[min(index, kept - 1)])
