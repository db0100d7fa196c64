"""`prefixaware` of vLLM's production-stack: any of the replicas that got the longest prefix of the prompt before,
however loaded they are.

After vllm-project/production-stack, `src/vllm_router/prefix/hashtrie.py` (35e4ad3) and `routers/routing_logic.py`, 2025
to 2026: a trie over hashes of 128 characters each, random among those matched deepest, all of them where nothing
matches (`prefix_min_match_length` 0).

Ours takes two blocks of 16 tokens for 128 characters; a path of chunks in a trie is what a chained hash stands for. A
last chunk that isn't whole is part of a path there, and of ours only where a whole block is left. Theirs never evicts
(production-stack#687: out of memory); ours has PrefixHistory's bound.
"""

from collections.abc import Sequence

from gateway.routing.base import Decision, RouteRequest, decide
from gateway.routing.candidates import Candidates
from gateway.routing.draws import Draws
from gateway.routing.prefix_history import PrefixHistory

CHUNK_BLOCKS = 2


class PrefixText(Draws):
    name = "prefix_text"

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.history = PrefixHistory()

    def choose(self, request: RouteRequest, candidates: Candidates, now: float) -> Decision:
        matched = self.history.matched(_chunks(request), candidates.ids)
        place = candidates.rendezvous(self.draw(), matched == matched.max())
        return decide(self, request, candidates, place, -matched, matched_chunks=matched)

    def placed(self, request: RouteRequest, decision: Decision, now: float) -> None:
        super().placed(request, decision, now)
        self.history.add(decision.choice, _chunks(request))


def _chunks(request: RouteRequest) -> Sequence[int]:
    """The chained hash at each one's end."""
    whole = request.hashes[CHUNK_BLOCKS - 1 :: CHUNK_BLOCKS]
    return [*whole, request.hashes[-1]] if len(request.hashes) % CHUNK_BLOCKS else whole
