"""`cache_aware` of SGLang's router: longest prefix that it has sent before, unless the fleet is out of balance.

After sgl-project/sglang, `sgl-model-gateway/src/policies/cache_aware.rs` (053b63f) and `tree.rs`, 2025 to 2026:

- Where max - min requests in flight exceed `balance_abs` and max exceeds `balance_rel` times min, the fewest requests.
- Else, where more than `threshold` of the prompt was sent before, the replica that got it; of several, any but always
  the same one, which here is a hash of the match.
- Else the fewest requests; of several the one that got the fewest so far; then the first.

Its defaults differ by entry point, so there are both: those of the command line, and those of the library.

Ours differs where it can't be the same. Its tree is of characters, ours of blocks of 16 tokens, a block for 64
characters. Each replica's part is cut to its bound once an interval, as there, which leaves it without one in between;
ours has PrefixHistory's as well. A match on a replica that isn't a candidate counts for nothing; there it ends at the
first healthy worker.
"""

from gateway.routing.base import Decision, RouteRequest, decide
from gateway.routing.candidates import Candidates
from gateway.routing.prefix_history import PrefixHistory
from replica.protocol.hashing import BLOCK_SIZE

CHARACTERS_A_BLOCK = 4 * BLOCK_SIZE


class Sglang:
    """With the defaults of `python -m sglang_router.launch_router`."""

    name = "sglang"
    threshold = 0.3
    balance_abs = 64
    balance_rel = 1.5
    evict_every_s = 60.0
    max_tree_size = 1 << 26
    """Characters of each replica."""

    def __init__(self) -> None:
        self.history = PrefixHistory()
        self._evict_at = 0.0

    def choose(self, request: RouteRequest, candidates: Candidates, now: float) -> Decision:
        requests = candidates.requests
        low, high = requests.min(), requests.max()
        matched = self.history.matched(request.hashes, candidates.ids)
        deepest = int(matched.max())
        imbalanced = high - low > self.balance_abs and high > self.balance_rel * low
        if not imbalanced and deepest * BLOCK_SIZE > self.threshold * request.tokens:
            place = candidates.rendezvous(request.hashes[deepest - 1], matched == deepest)
            cost = -matched
        else:
            least = requests == low
            prompts = self.history.prompts(candidates.ids)
            place = candidates.first(least & (prompts == prompts[least].min()))
            cost = requests
        return decide(self, request, candidates, place, cost, matched_blocks=matched, requests=requests)

    def placed(self, request: RouteRequest, decision: Decision, now: float) -> None:
        self.history.add(decision.choice, request.hashes)
        if now >= self._evict_at:
            self._evict_at = now + self.evict_every_s
            self.history.trim(self.max_tree_size // CHARACTERS_A_BLOCK)


class SglangLibrary(Sglang):
    """With those of `CacheAwareConfig::default()`."""

    name = "sglang_library"
    threshold = 0.5
    balance_abs = 32
    balance_rel = 1.1
    evict_every_s = 30.0
    max_tree_size = 10_000
