"""What a prompt itself would wait for its first token on each replica, in seconds.

The terms that every policy is judged by, whatever it decides by: its own wait, not what it costs others.
"""

from typing import NamedTuple

import numpy as np

from gateway.routing.base import Decision
from gateway.routing.candidates import SIZES, Candidates, Floats, size_classes
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
    return Ahead(tokens, counts.sum(axis=0), share * (c.size_counts - counts).sum(axis=0))


def queue_wait_s(candidates: Candidates, ahead: Ahead) -> Floats:
    """Half of the step under way, and what is computed before the request."""
    c = candidates
    step_s = c.c0 + c.c_dec * c.decoding
    under_way = np.where(c.queue_tokens > 0, step_s + c.c_lin * np.minimum(c.queue_tokens, c.step_tokens), 0.0)
    return (c.c_lin + step_s / c.step_tokens) * ahead.tokens + under_way / 2


def place_wait_s(candidates: Candidates, uncached: Floats, ahead: Ahead) -> Floats:
    """Until a place among those running and KV blocks for all of the prompt come free: they do as answers end."""
    c = candidates
    blocks = c.active_blocks + (ahead.tokens + uncached) / BLOCK_SIZE - c.total_blocks
    lacking = np.where(c.total_blocks > 0, blocks / np.maximum(1.0, c.active_blocks), 0.0)
    places = (c.decoding + ahead.requests + 1 - c.max_running) / np.maximum(1.0, c.decoding)
    return c.stay_s * np.maximum(0.0, np.maximum(lacking, np.where(c.max_running > 0, places, 0.0)))


def believed_wait_s(tokens: int, candidates: Candidates) -> Floats:
    return wait_s(tokens, candidates, candidates.credited_tokens(tokens))


def predicted_ttft_s(decision: Decision) -> float | None:
    """Of the choice, by the decision's own terms; None where its policy doesn't predict seconds."""
    if not all(term in decision.columns for term in WAIT_TERMS):
        return None
    return float(sum(decision.columns[term][decision.place] for term in WAIT_TERMS))
