"""NVIDIA Dynamo's KV router: prefill blocks that are left to compute, queue included, plus blocks under decode.

After ai-dynamo/dynamo, `lib/kv-router/src/scheduling/selector/default.rs` (07a6c9c, 2026), with its defaults: overlap
credit 1.0 without decay, prefill load scale 1, temperature 0 (the lowest cost; of several, any).

    cost = max(0, (queued tokens + prompt) / block - overlap) + blocks in use + the prompt's blocks

Blocks are of 16 tokens here, of 16 to 64 there. It counts a prompt's blocks that are in use already only once; that
can't be told from a load report, so here all of them count, on each replica alike. Tiers in host memory and on disk
(credit 0.75 and 0.25) don't exist here, and its queue thresholds are off by default.
"""

import numpy as np

from gateway.routing.base import Decision, RouteRequest, decide
from gateway.routing.candidates import Candidates
from gateway.routing.draws import Draws
from replica.protocol.hashing import BLOCK_SIZE

OVERLAP_CREDIT = 1.0
PREFILL_LOAD_SCALE = 1.0


class Dynamo(Draws):
    name = "dynamo"

    def choose(self, request: RouteRequest, candidates: Candidates, now: float) -> Decision:
        overlap = OVERLAP_CREDIT * candidates.cached_tokens(request.tokens) / BLOCK_SIZE
        raw = (candidates.queue_tokens + request.tokens) / BLOCK_SIZE
        prefill = PREFILL_LOAD_SCALE * np.maximum(0.0, raw - overlap)
        decode = candidates.active_blocks + np.ceil(request.tokens / BLOCK_SIZE)
        cost = prefill + decode
        place = candidates.rendezvous(self.draw(), cost == cost.min())
        return decide(self, request, candidates, place, cost, prefill_blocks=prefill, decode_blocks=decode)
