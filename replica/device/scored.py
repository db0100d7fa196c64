"""Logprobs of prompts, for the requests that ask: taken from the logits on the device, since a prompt's whole logits
would be gigabytes to copy."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import torch

from replica.device.transfer import fetch, send
from replica.logprobs import log_probabilities
from replica.sequence import Chunk, Sequence, TokenLogprobs

_ROWS = 64
"""Whose logits are held at once."""


@dataclass(frozen=True, slots=True)
class ScoredPart:
    """Some rows of one prompt. The row of a token tells about the next one."""

    sequence: Sequence
    rows: tuple[int, int]
    """Of the step."""
    tokens: list[int]
    """The next ones."""


@dataclass(frozen=True, slots=True)
class Scores:
    """On their way to the host."""

    part: ScoredPart
    chosen: torch.Tensor
    best: torch.Tensor
    ids: torch.Tensor

    def add(self) -> None:
        """To the sequence's list, once they are there."""
        entries = self.part.sequence.prompt_logprobs
        for logprob, ids, best in zip(self.chosen.tolist(), self.ids.tolist(), self.best.tolist(), strict=True):
            entries.append(TokenLogprobs(logprob, tuple(zip(ids, best, strict=True))))


def begin_scores(chunks: SequenceOf[Chunk]) -> None:
    """The first token follows nothing."""
    for chunk in chunks:
        if chunk.sequence.lacks_prompt_logprobs and not chunk.sequence.prompt_logprobs:
            chunk.sequence.prompt_logprobs.append(None)


def scored_parts(chunks: SequenceOf[Chunk]) -> list[ScoredPart]:
    """In the order of the rows; of chunks that were begun. Rows computed again after a preemption tell nothing new."""
    parts: list[ScoredPart] = []
    end = 0
    for chunk in chunks:
        start, end = end, end + chunk.count
        sequence = chunk.sequence
        if not sequence.lacks_prompt_logprobs:
            continue
        known = len(sequence.prompt_logprobs) - 1
        assert chunk.start <= known, "the rows between were never computed"
        last = min(chunk.end, len(sequence.prompt) - 1)
        for first in range(known, last, _ROWS):
            until = min(first + _ROWS, last)
            rows = (first - chunk.start + start, until - chunk.start + start)
            parts.append(ScoredPart(sequence, rows, sequence.prompt[first + 1 : until + 1]))
    return parts


def score(part: ScoredPart, logits: torch.Tensor) -> Scores:
    logprobs = log_probabilities(logits)
    (tokens,) = send([np.array(part.tokens, np.int64)], logits.device)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    best, ids = logprobs.topk(min(part.sequence.params.logprobs or 0, logprobs.shape[1]), dim=-1)
    return Scores(part, fetch(chosen), fetch(best), fetch(ids))
