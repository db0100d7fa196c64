"""Ours: the replica where the request makes everybody's wait for a first token, its own and others', grow the least.

    cost_r = queue_r + place_r + prefill_r       seconds until this request's own first token
           - shared_r                            what of that is done for others, see below
           + delay_r                             seconds that those wait longer which it passes
           + compute_r + kv_r + eviction_r       seconds that those to come wait longer

A replica that prefills the shortest first lets a request pass whatever has more left to compute, so queue_r counts only
what is shorter, and delay_r is what the request costs those that it passes: its own prefill, once for each of them.
That is the marginal cost of a job under SRPT (see Hyytiä, Penttinen, Aalto 2012, "Size- and state-aware dispatching").
Where a replica goes by arrival, all of the queue is ahead and nobody is passed.

What the request uses of compute and of KV has a price by how scarce it is: a share `use` of anything that is in use
for a share `load` of the time costs those to come about use · load / (1 - load), as in an M/M/1 queue. So on an idle
fleet a prompt may be computed anew for a shorter wait, and on a busy one it stays where its blocks are. A replica's
price is half by its own load and half by the fleet's: who comes next may go elsewhere. KV counts as often as it will be
held again by those that reuse it: where nothing is, it doesn't matter who holds it for once.

A prefix that many requests bring is worth its computing more than once. What it costs is shared out over as many as
will find it there, if they go on coming as they have: so it spreads as its owners fill, and only then.

All constants are measured; there is no knob.
"""

import math
from array import array
from collections import OrderedDict

import numpy as np

from gateway.routing.base import Decision, RouteRequest, branch_hash, decide
from gateway.routing.candidates import Candidates, Floats
from gateway.routing.native.ttft import NativeTerms, native_choice
from gateway.routing.wait import ahead_of, place_wait_s, prefill_wait_s, queue_wait_s
from replica.protocol.hashing import BLOCK_SIZE

NEAR = 0.05
"""Share of the prefill's time by which costs may differ and say nothing: no cost model is fitted better."""

LOAD_MAX = 0.97
"""At which a price stops to rise."""

REUSE_MAX = 0.97
"""The same for how often blocks come back."""

ALIKE = 2.0
"""Replicas whose coefficients differ from the fleet's median by less than this factor are taken for equal: on shared
cores a fit is no better, and all new contexts would go to the one that was luckiest while it was fitted."""

SPREAD = 2.0
"""How much longer than under M/M/1 others wait for compute, by Pollaczek and Khinchine: prompts differ in length more
than exponentially (in public traces their variance is about three squared means)."""

EVICTED_REUSE = 0.3
"""How much less than other blocks those come back that are evicted: the ones used longest ago."""

MEMORY_S = 10.0
"""Time constant of what is remembered: how busy the fleet is, how often a prefix comes."""

IDLE = 10.0
"""Requests that would have found the fleet idle before the first one: a few at once don't make it a busy one."""

PREFIXES_MAX = 1 << 16


class Ttft:
    name = "ttft"
    binds_late = True

    def __init__(self) -> None:
        self._busy = _Busy()
        self._uses = _Uses()

    def choose(self, request: RouteRequest, candidates: Candidates, now: float) -> Decision:
        figures = candidates.figures
        shared = _shared_hash(request, figures.deepest)
        # How many requests will find at a replica what the best one has of this prompt, this one included.
        uses = self._uses.count(shared, now) / (figures.owners + 1)
        if uses < 1.0:
            uses = 1.0
        if candidates.library is not None:
            decision = native_choice(self, request, candidates, uses, self._busy.shares(candidates.ids))
        else:
            decision = self._choose(request, candidates, uses)
        decision.shared_hash = shared
        return decision

    def _choose(self, request: RouteRequest, candidates: Candidates, future_uses: float) -> Decision:
        """As native_choice, term by term."""
        c = _levelled(candidates)
        cached = c.credited_tokens(request.tokens)
        uncached = request.tokens - cached
        prefill_s = prefill_wait_s(request.tokens, c, cached)
        # Blocks that are only expected are computed first, for whoever brought them.
        ahead = ahead_of(c, request.tokens - c.held_tokens(request.tokens) * c.trust)
        new_s = prefill_wait_s(request.tokens, c, np.full_like(cached, cached.max()))
        shared_s = (prefill_s - new_s) * (1 - 1 / future_uses)
        price = SPREAD * self._busy.price(c.ids)
        work_s = prefill_s - shared_s
        terms = {
            "queue_s": queue_wait_s(c, ahead),
            "place_s": place_wait_s(c, uncached, ahead),
            "prefill_s": prefill_s,
            "shared_s": -shared_s,
            "delay_s": ahead.passed * prefill_s,
            "compute_s": work_s * price,
            "kv_s": _kv_s(c, uncached),
            "eviction_s": c.c_lin * BLOCK_SIZE * _evicted_blocks(c, uncached) * EVICTED_REUSE * c.reuse * (1 + price),
        }
        total = np.sum(list(terms.values()), axis=0)
        place = _place(request, c, total, work_s * (1 + price), new_s)
        seen = {"cached_tokens": cached, "matched_blocks": c.matched_blocks}
        beliefs = {"trust": c.trust, "unpromised": c.unpromised}
        return decide(self, request, candidates, place, total, **terms, **seen, **beliefs)

    def placed(self, request: RouteRequest, decision: Decision, now: float) -> None:
        self._busy.add(decision, now)
        self._uses.add(decision.shared_hash, now)


def _levelled(candidates: Candidates) -> Candidates:
    """With costs that are alike made equal. Answers stay as long as their steps take: a replica's own few say less."""
    c = candidates
    c0, c_lin, c_att, c_dec = _level(c.c0), _level(c.c_lin), _level(c.c_att), _level(c.c_dec)
    step_s = c0 + c_dec * c.decoding
    known = c.stay_s > 0
    stay_s = step_s * _mean((c.stay_s / np.maximum(step_s, 1e-9))[known]) if known.any() else c.stay_s
    return c.changed(c0=c0, c_lin=c_lin, c_att=c_att, c_dec=c_dec, stay_s=stay_s)


def _level(values: Floats) -> Floats:
    half = len(values) // 2
    median = np.partition(values, half)[half]
    return np.where((values < median * ALIKE) & (values * ALIKE > median), median, values)


def _mean(values: Floats) -> float:
    """The same to the last bit in whatever order they come."""
    return float(np.sort(values).mean())


class _Busy:
    """The share of the time that each replica has something to prefill, as seen by the requests that come."""

    def __init__(self) -> None:
        self._ids: tuple[str, ...] = ()
        self._shares = array("d")
        self.weight = IDLE
        self._at = math.inf

    def price(self, ids: tuple[str, ...]) -> Floats:
        """Half by each one's own load and half by the fleet's."""
        shares = np.frombuffer(self.shares(ids))
        mean = _mean(shares)
        most = min(mean, LOAD_MAX)
        return most / (1 - most) * (1 + shares / max(mean, 1e-9)) / 2

    def shares(self, ids: tuple[str, ...]) -> "array[float]":
        """Of a replica that wasn't there before, the mean of the others."""
        if ids is self._ids or ids == self._ids:
            return self._shares
        known = dict(zip(self._ids, self._shares, strict=True))
        mean = _mean(np.frombuffer(self._shares)) if known else 0.0
        return array("d", [known.get(replica, mean) for replica in ids])

    def add(self, decision: Decision, now: float) -> None:
        shares, columns, age_s = self.shares(decision.candidates), decision.columns, now - self._at
        weight = 1.0 + self.weight * (math.exp(-age_s / MEMORY_S) if age_s > 0.0 else 1.0)
        self.weight, self._ids, self._at, self._shares = weight, decision.candidates, now, shares
        if isinstance(columns, NativeTerms):
            columns.count_busy(shares, weight)
        else:
            values = np.frombuffer(shares)
            values += ((columns["queue_s"] > 0) - values) / weight


class _Uses:
    """How often prefixes have come, of late: bounded, the one that hasn't come for longest is forgotten."""

    def __init__(self) -> None:
        self._counts: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def count(self, key: int, now: float) -> float:
        known = self._counts.get(key)
        return 0.0 if known is None else known[0] * math.exp((known[1] - now) / MEMORY_S)

    def add(self, key: int, now: float) -> None:
        counts = self._counts
        counts[key] = 1.0 + self.count(key, now), now
        counts.move_to_end(key)
        if len(counts) > PREFIXES_MAX:
            counts.popitem(last=False)


def _shared_hash(request: RouteRequest, deepest: int) -> int:
    """Of the last block that somebody has of this prompt."""
    hashes = request.hashes
    blocks = len(hashes)
    if deepest < blocks:
        blocks = deepest
    return hashes[blocks - 1] if blocks else 0


def _kv_s(candidates: Candidates, uncached: Floats) -> Floats:
    """The request's share of the KV, for as long as others will hold it again, at its price.

    Of all that is held, the share `reuse` was brought by those before, so a block is held reuse / (1 - reuse) times
    more. Its first stay is as long wherever it goes, and ends; what comes back keeps a replica full.
    """
    c = candidates
    total = np.maximum(1.0, c.total_blocks)
    reuse = min(_mean(c.reuse), REUSE_MAX)
    load = np.minimum(c.active_blocks / total, LOAD_MAX)
    mean = _mean(load)
    price = (load / (1 - load) + mean / (1 - mean)) / 2
    held_s = c.stay_s * reuse / (1 - reuse)
    return np.where(c.total_blocks > 0, held_s * uncached / BLOCK_SIZE / total * price, 0.0)


def _place(request: RouteRequest, candidates: Candidates, total: Floats, computing_s: Floats, new_s: Floats) -> int:
    """Of those that are about the cheapest the roomiest; of several the same one at all gateways.

    Where there is room, and computing anew what another has costs less than half of what is new to all, that is about
    as cheap: the choice is where those will go that come with the same context, so contexts spread.
    """
    cheapest = int(total.argmin())
    slack = NEAR * new_s[cheapest]
    waste = np.maximum(0.0, computing_s - computing_s[cheapest])
    waits_no_longer = total - waste <= total[cheapest] + slack
    free = np.maximum(0.0, candidates.free_blocks - candidates.size_tokens.sum(axis=0) / BLOCK_SIZE)
    near = (total <= total[cheapest] + slack) | (
        (free >= len(request.hashes)) & waits_no_longer & (waste <= new_s[cheapest] / 2)
    )
    free = np.where(near, free, -1.0)
    tied = near & (free == free.max())
    if np.count_nonzero(tied) == 1:
        return int(tied.argmax())
    return candidates.rendezvous(branch_hash(request, candidates), tied)


def _evicted_blocks(candidates: Candidates, uncached: Floats) -> Floats:
    """Blocks that must go for this prompt's new ones."""
    free = np.maximum(0.0, candidates.free_blocks - candidates.queue_tokens / BLOCK_SIZE)
    return np.where(candidates.total_blocks > 0, np.maximum(0.0, uncached / BLOCK_SIZE - free), 0.0)
