"""Whether one more request may join a replica's queue."""

import math
from dataclasses import dataclass

from replica.protocol.hashing import BLOCK_SIZE
from replica.protocol.records import CostModel, Load

_TOKENS_PER_KV_TOKEN = 4
"""By default as many prompt tokens may wait as fill the KV memory four times: answering them takes that many turns.
Their bookkeeping, about 100 bytes a token, is small beside that memory."""

_MAX_RETRY_AFTER_S = 60


@dataclass(frozen=True, slots=True)
class QueueLimits:
    max_waiting: int
    """Requests."""
    max_waiting_tokens: int | None = None
    """Prompt tokens still to be computed; None: a multiple of what the KV memory holds."""


@dataclass(frozen=True, slots=True)
class Refusal:
    message: str
    retry_after_s: int


def refusal(load: Load, limits: QueueLimits, cost: CostModel, prompt_tokens: int) -> Refusal | None:
    """None: let it in. A prompt is never too long by itself: where nothing is pending, any gets in.

    Retry-After is when the queue should have room, by the replica's own cost model: a lower bound, since how long the
    running answers get, and so when they give back their pages, nobody knows.
    """
    if load.waiting >= limits.max_waiting:
        per_request = math.ceil(load.pending_tokens / load.waiting)
        message = f"this replica's queue is full: {load.waiting} requests wait (max_waiting)"
        return Refusal(message, _retry_after_s(load, cost, (load.waiting - limits.max_waiting + 1) * per_request))
    max_tokens = limits.max_waiting_tokens
    if max_tokens is None:
        max_tokens = _TOKENS_PER_KV_TOKEN * load.total_blocks * BLOCK_SIZE
    excess = load.pending_tokens + prompt_tokens - max_tokens
    if load.pending_tokens > 0 and excess > 0:
        message = f"this replica's queue is full: {load.pending_tokens} prompt tokens wait (max_waiting_tokens)"
        return Refusal(message, _retry_after_s(load, cost, min(excess, load.pending_tokens)))
    return None


def _retry_after_s(load: Load, cost: CostModel, tokens: int) -> int:
    """Whole seconds, at least 1, in which the engine prefills `tokens` of its queue beside its decodes."""
    steps = tokens / cost.max_step_tokens
    prompt = load.pending_tokens / max(1, load.waiting + load.running - load.decoding)
    seconds = steps * (cost.c0 + cost.c_dec * load.decoding) + tokens * (cost.c_lin + cost.c_att * prompt / 2)
    return max(1, min(_MAX_RETRY_AFTER_S, math.ceil(seconds)))
