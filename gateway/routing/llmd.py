"""llm-d's router: a weighted sum of scores between 0 and 1; the highest wins.

After llm-d/llm-d-router (`pkg/epp/framework/plugins/scheduling`, 2342697 and 0fa77a0, August to September 2026) with
its default weights, and the precise index that its own benchmarks are best with:

- queue, 2: waiting requests between the longest queue, 0, and the shortest, 1; all 1 where they are equal.
- kv-cache-utilization, 2: 1 - the share of KV blocks in use.
- prefix, 3: matched blocks over the prompt's.

Equal scores are rotated through there (`max-score-picker`), and drawn from here, as the candidates' order mustn't
matter. Blocks in use are those of sequences under way, as vLLM reports them. Its index is fed by events and may lag;
ours is the gateway's own, and credits what was just sent (`speculativeIndexing`, which is off there by default).
"""

import numpy as np

from gateway.routing.base import Decision, RouteRequest, decide
from gateway.routing.candidates import Candidates
from gateway.routing.draws import Draws

QUEUE_WEIGHT = 2.0
KV_WEIGHT = 2.0
PREFIX_WEIGHT = 3.0


class Llmd(Draws):
    name = "llmd"

    def choose(self, request: RouteRequest, candidates: Candidates, now: float) -> Decision:
        waiting = candidates.waiting
        spread = waiting.max() - waiting.min()
        queue = (waiting.max() - waiting) / spread if spread else np.ones(len(candidates))
        kv = 1.0 - candidates.active_blocks / np.maximum(1.0, candidates.total_blocks)
        kv = np.where(candidates.total_blocks > 0, np.clip(kv, 0.0, 1.0), 1.0)
        prefix = candidates.matched_blocks / max(1, len(request.hashes))
        score = QUEUE_WEIGHT * queue + KV_WEIGHT * kv + PREFIX_WEIGHT * prefix
        place = candidates.rendezvous(self.draw(), score == score.max())
        terms = {"queue_score": queue, "kv_score": kv, "prefix_score": prefix}
        return decide(self, request, candidates, place, -score, **terms)
