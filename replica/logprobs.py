"""Log probabilities of the model itself, for the requests that ask."""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

import torch

from replica.sequence import Chunk, Sequence, TokenLogprobs

_SLICE = 64
"""Rows of a prompt whose logits are held at once: 12 MiB at 49,152 tokens, and as much for their logarithms."""


def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """logits [rows, vocabulary] -> the same shape, in fp32."""
    return torch.log_softmax(logits.float(), dim=-1)


def token_logprobs(logprobs: torch.Tensor, tokens: SequenceOf[int], counts: SequenceOf[int]) -> list[TokenLogprobs]:
    """Of each row's token and of its `counts` likeliest."""
    chosen: list[float] = logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
    best, ids = logprobs.topk(min(max(counts), logprobs.shape[1]), dim=-1)
    return [
        TokenLogprobs(logprob, tuple(zip(row_ids[:count], row_best[:count], strict=True)))
        for logprob, row_ids, row_best, count in zip(chosen, ids.tolist(), best.tolist(), counts, strict=True)
    ]


def add_prompt_logprobs(
    chunks: SequenceOf[Chunk], hidden: torch.Tensor, head: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Goes on with the lists of those sequences of a step that want them. `hidden` has the rows of all chunks; `head`
    gives their logits."""
    end = 0
    for chunk in chunks:
        start, end = end, end + chunk.count
        if chunk.sequence.lacks_prompt_logprobs:
            _add(chunk, hidden[start:end], head)


def _add(chunk: Chunk, hidden: torch.Tensor, head: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The row of a token tells about the next one. Rows computed again after a preemption tell nothing new."""
    sequence = chunk.sequence
    entries = sequence.prompt_logprobs
    if not entries:
        entries.append(None)
    assert chunk.start < len(entries), "the rows between were never computed"
    last = min(chunk.end, len(sequence.prompt) - 1)
    for first in range(len(entries) - 1, last, _SLICE):
        until = min(first + _SLICE, last)
        entries.extend(_next_tokens(sequence, first, head(hidden[first - chunk.start : until - chunk.start])))


def _next_tokens(sequence: Sequence, first: int, logits: torch.Tensor) -> list[TokenLogprobs]:
    tokens = sequence.prompt[first + 1 : first + 1 + len(logits)]
    return token_logprobs(log_probabilities(logits), tokens, [sequence.params.logprobs or 0] * len(logits))
