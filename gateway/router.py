"""Fleet and index seen through the policy: where a prompt goes, and what that is expected to leave behind."""

from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import partial

from gateway.fleet import Fleet, Incarnation, Lease
from gateway.index.prefix_index import EXPECT_MAX_BLOCKS, Matches, PrefixIndex
from gateway.intents.outbox import Outbox
from gateway.routing.base import Decision, Policy, RouteRequest
from gateway.routing.candidates import Candidates
from gateway.routing.reason import Reason, reason_for
from gateway.routing.survey import Survey, survey_of
from replica.protocol.hashing import BLOCK_SIZE
from replica.protocol.intents import Intents

RENEW_MAX_BLOCKS = EXPECT_MAX_BLOCKS // 4
"""With more, a generation of expectations would be full again at once, and each decision would renew them all."""


@dataclass(frozen=True, slots=True)
class Barred:
    """A replica that holds more of the prompt than any candidate, and couldn't be chosen."""

    replica: str
    state: str
    """`ready` for one that this request has failed on already, or whose context is too small for it."""
    held_tokens: int


@dataclass(slots=True, eq=False)
class Considered:
    """A decision with all that it was taken on."""

    request: RouteRequest
    decision: Decision
    candidates: Candidates
    barred: tuple[Barred, ...]
    """The one that holds the most first."""
    retry: bool
    """The request has failed elsewhere before."""
    _reason: Reason | None = None
    _survey: Survey | None = None

    @property
    def reason(self) -> Reason:
        if self._reason is None:
            self._reason = reason_for(self.decision, self.survey, retry=self.retry)
        return self._reason

    @property
    def survey(self) -> Survey:
        if self._survey is None:
            self._survey = survey_of(self.request.tokens, self.candidates, self.decision)
        return self._survey


class Router:
    def __init__(self, fleet: Fleet, index: PrefixIndex, policy: Policy, outbox: Outbox | None = None) -> None:
        """`outbox`: for the fleet's other gateways, if there may be any."""
        self.fleet = fleet
        self.index = index
        self.policy = policy
        self.outbox = outbox or Outbox("nobody")

    def route(self, request: RouteRequest, total_tokens: int, tried: Set[Incarnation], now: float) -> Decision | None:
        """None where no replica may take it. `total_tokens`: prompt and the answer that must fit with it."""
        self.expire(now)
        considered = self.consider(request, total_tokens, tried, now)
        return None if considered is None else considered.decision

    def expire(self, now: float) -> None:
        """Of what is expected, what is old: before each decision that is meant."""
        if self.index.expire(now, hold=self.fleet.unheard):
            self._renew()

    def consider(
        self,
        request: RouteRequest,
        total_tokens: int,
        tried: Set[Incarnation],
        now: float,
        policy: Policy | None = None,
        adjust: Callable[[Candidates], Candidates] | None = None,
    ) -> Considered | None:
        """A decision by the live policy, or by another, over the candidates as `adjust` has them. Changes nothing."""
        matches = self.index.match(request.hashes)
        candidates = self.fleet.choosable(now, total_tokens, tried, matches)
        if candidates is None:
            return None
        if adjust is not None:
            candidates = adjust(candidates)
        decision = (policy or self.policy).choose(request, candidates, now)
        barred = self._barred(request, candidates, matches, now)
        return Considered(request, decision, candidates, barred, retry=bool(tried))

    def _barred(
        self, request: RouteRequest, candidates: Candidates, matches: Matches, now: float
    ) -> tuple[Barred, ...]:
        usable = candidates.figures.most_held
        whole = (request.tokens - 1) // BLOCK_SIZE
        if usable >= whole:
            return ()
        found = [
            Barred(replica, self.fleet.state(replica, now), min(held, whole) * BLOCK_SIZE)
            for replica, held in matches.holding_more(usable)
        ]
        return tuple(sorted(found, key=lambda each: -each.held_tokens))

    def take(self, request: RouteRequest, decision: Decision, now: float, choices: int = 1) -> Lease:
        """The lease for a decision; its prefix is from now on expected at the replica."""
        held, whole = request.hashes, (request.tokens - 1) // BLOCK_SIZE
        if len(held) > whole:
            held = held[:whole]
        choice, cached = decision.choice, decision.cached_tokens
        lease = self.fleet.lease(choice, request.tokens - cached, held, now, choices)
        # What its digest has is there without that.
        known = decision.held_tokens // BLOCK_SIZE
        if len(held) > known:
            self.index.expect(choice, held[known:] if known else held)
        # Between a decision and its sending another policy may have been put in.
        if decision.policy == self.policy.name:
            self.policy.placed(request, decision, now)
        if self.outbox.is_heard(now):
            new = held[cached // BLOCK_SIZE :]
            number = self.outbox.routed(choice, lease.uncached_tokens, new, now)
            lease.on_prefilled = partial(self.outbox.done, number)
        return lease

    def heard(self, intents: Intents, now: float) -> int:
        """What a gateway has told the others: its requests count in the replicas' queues from now on, and their
        prefixes are expected there. How many were new and another's."""
        if intents.gateway == self.outbox.gateway:
            return 0
        highest = max((intent.number for intent in intents.routed), default=-1)
        newest = self.outbox.peers.hear(intents.gateway, highest, now)
        self.expire(now)
        new = [intent for intent in intents.routed if intent.number > newest]
        for intent in new:
            if self.fleet.intend(intent.replica, (intents.gateway, intent.number), intent.tokens, now - intent.age_s):
                self.index.expect(intent.replica, intent.hashes)
        for done in intents.done:
            self.fleet.settle(done.replica, (intents.gateway, done.number))
        return len(new)

    def _renew(self) -> None:
        """Expects again what requests still wait for: the newest ones, as far as RENEW_MAX_BLOCKS go."""
        room = RENEW_MAX_BLOCKS
        renewed = set[tuple[str, int]]()
        for waiting in sorted(self.fleet.prefilling(), key=lambda lease: lease.taken_at, reverse=True):
            if waiting.hashes and (waiting.replica, waiting.hashes[-1]) not in renewed:
                room -= len(waiting.hashes)
                if room < 0:
                    return
                renewed.add((waiting.replica, waiting.hashes[-1]))
                self.index.expect(waiting.replica, waiting.hashes)
