"""What a prompt itself would wait for its first token on each replica, in seconds.

The terms that every policy is judged by, whatever it decides by: its own wait, not what it costs others.
"""

from typing import NamedTuple

import numpy as np

from gateway.routing.base import Decision
from gateway.routing.candidates import SIZES, Candidates, Floats, size_classes
from gateway.routing.native.ttft import NativeTerms
from replica.protocol.hashing import BLOCK_SIZE

TIE = 1.01
"""Waits this close say nothing: a fitted cost model is no better than a per cent."""

WAIT_TERMS = ("queue_s", "place_s", "prefill_s")
"""What a policy that predicts seconds calls them."""


def wait_s(tokens: int, candidates: Candidates, cached: Floats) -> Floats:
    """Where `cached` of the prompt's tokens come from each cache. It may have a row for each guess."""
    c = candidates
    ahead = ahead_of(c, tokens - c.held_tokens(tokens) * c.trust)
    return queue_wait_s(c, ahead) + place_wait_s(c, tokens - cached, ahead) + prefill_wait_s(tokens, c, cached)


def prefill_wait_s(tokens: int, candidates: Candidates, cached: Floats) -> Floats:
    """With the decodes beside."""
    c = candidates
    steps = np.maximum(1.0, (tokens - cached) / c.step_tokens)
    return c.prefill_s(tokens, cached) + c.c_dec * c.decoding * steps


class Ahead(NamedTuple):
    tokens: Floats
    """Computed before the request."""
    requests: Floats
    """Theirs, as far as they are known."""
    passed: Floats
    """Requests that the request makes wait."""


def ahead_of(candidates: Candidates, size: Floats) -> Ahead:
    """Of a request of this size."""
    c = candidates
    known = c.size_tokens.sum(axis=0)
    share = np.minimum(1.0, c.queue_tokens / np.maximum(known, 1.0))
    unknown = np.maximum(0.0, c.queue_tokens - known)
    shorter = (np.arange(SIZES)[:, None] <= size_classes(size)) | (c.shortest_first == 0)
    tokens = unknown + share * (c.size_tokens * shorter).sum(axis=0)
    counts = c.size_counts * shorter
    others = np.maximum(0.0, c.waiting - c.size_counts.sum(axis=0))
    return Ahead(tokens, others + counts.sum(axis=0), share * (c.size_counts - counts).sum(axis=0))


def queue_wait_s(candidates: Candidates, ahead: Ahead) -> Floats:
    """Half of the step under way, and what is computed before the request."""
    c = candidates
    step_s = c.c0 + c.c_dec * c.decoding
    under_way = np.where(c.queue_tokens > 0, step_s + c.c_lin * np.minimum(c.queue_tokens, c.step_tokens), 0.0)
    return (c.c_lin + step_s / c.step_tokens) * ahead.tokens + under_way / 2


def place_wait_s(candidates: Candidates, uncached: Floats, ahead: Ahead) -> Floats:
    """Until a place among those running and KV blocks for all of the prompt come free: they do as answers end. Those
    ahead will hold as much as those that run: what waits for blocks isn't computed, so its tokens say less."""
    c = candidates
    decoding = np.maximum(1.0, c.decoding)
    places = c.decoding + ahead.requests + 1 - c.max_running
    blocks = c.active_blocks / decoding * ahead.requests + uncached / BLOCK_SIZE + c.active_blocks - c.total_blocks
    lacking = np.where(c.total_blocks > 0, blocks / np.maximum(1.0, c.active_blocks), 0.0)
    return c.stay_s * np.maximum(0.0, np.maximum(lacking, np.where(c.max_running > 0, places / decoding, 0.0)))


def believed_wait_s(tokens: int, candidates: Candidates) -> Floats:
    return wait_s(tokens, candidates, candidates.credited_tokens(tokens))


def in_seconds(decision: Decision) -> bool:
    """Whether its policy predicts them."""
    columns = decision.columns
    return isinstance(columns, NativeTerms) or all(term in columns for term in WAIT_TERMS)


def predicted_ttft_s(decision: Decision) -> float | None:
    """Of the choice, by the decision's own terms; None where its policy doesn't predict seconds."""
    columns = decision.columns
    if isinstance(columns, NativeTerms):
        return columns.predicted_s
    return float(sum(columns[term][decision.place] for term in WAIT_TERMS)) if in_seconds(decision) else None
