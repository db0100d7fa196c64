"""A conversation stays where it began: on the replica that had the fewest requests in flight then.

After `sticky_least_loaded` of vllm-project/router (September 2026): an exact map from session to worker, forgotten
after two hours without use; a session whose worker is gone begins anew. That one is told the session; where ours isn't,
the prompt's first 256 tokens stand in for it, as in `prefix_hash` of SGLang's model gateway; a prompt without a whole
block is nobody's. Beyond MAX_SESSIONS ours forgets the one that was longest unused. A session never leaves for load.
"""

from collections import OrderedDict

import numpy as np

from gateway.routing.base import Decision, RouteRequest, decide, last_hash, prefix_key
from gateway.routing.candidates import Candidates

TTL_S = 7200.0
MAX_SESSIONS = 1 << 17
KEY_BLOCKS = 16


class Session:
    name = "session"

    def __init__(self) -> None:
        self._homes: OrderedDict[str | int, tuple[str, float]] = OrderedDict()
        """Replica and last use, the longest unused first."""

    def __len__(self) -> int:
        return len(self._homes)

    def choose(self, request: RouteRequest, candidates: Candidates, now: float) -> Decision:
        home, used_at = self._homes.get(_key(request), ("", now))
        requests = candidates.requests
        sticky = np.zeros(len(candidates))
        if home in candidates.ids and now - used_at < TTL_S:
            place = candidates.ids.index(home)
            sticky[place] = 1.0
        else:
            place = candidates.rendezvous(last_hash(request), requests == requests.min())
        return decide(self, request, candidates, place, requests, sticky=sticky)

    def placed(self, request: RouteRequest, decision: Decision, now: float) -> None:
        key = _key(request)
        if not key:
            return
        self._homes[key] = decision.choice, now
        self._homes.move_to_end(key)
        while len(self._homes) > MAX_SESSIONS or now - next(iter(self._homes.values()))[1] >= TTL_S:
            self._homes.popitem(last=False)


def _key(request: RouteRequest) -> str | int:
    return request.session or prefix_key(request, KEY_BLOCKS)
