"""Who goes now, who waits, who is refused: over a real fleet, index and policy, in virtual time."""

from math import inf

import pytest

from gateway.errors import DeadlineOutOfReach, QueueFull
from gateway.fleet import Beat, Fleet, Lease
from gateway.hold.bounds import UNBOUNDED, Bounds
from gateway.hold.desk import FrontDesk
from gateway.hold.guest import Guest, Terms
from gateway.index.factory import make_index
from gateway.router import Router
from gateway.routing.base import RouteRequest
from gateway.routing.registry import make_policy
from replica.protocol.records import CostModel, Load, Snapshot
from tests.gateway.fakes import IDENTITY, blocks, heartbeat

COST = CostModel(c0=0.01, c_lin=0.001, c_att=0.0, c_dec=0.0, max_step_tokens=500)
"""A full step takes 0.51 s, so about 1,000 tokens ahead are enough to wait for."""


class Rig:
    def __init__(self, *replicas: str, policy: str = "ttft", bounds: Bounds = UNBOUNDED) -> None:
        self.fleet = Fleet(IDENTITY)
        self.router = Router(self.fleet, make_index(), make_policy(policy))
        self.desk = FrontDesk(self.router, bounds)
        self.beats = dict.fromkeys(replicas, Load())
        self.leases: dict[Guest, Lease] = {}
        self._prompts = 0
        self.beat(0.0)
        for replica in replicas:
            self.router.index.load(replica, Snapshot("e1", 0, "0-0", ()))

    def beat(self, now: float) -> None:
        beats = {
            name: heartbeat(name, cost=COST, load=load, max_context=1 << 20, order="shortest")
            for name, load in self.beats.items()
        }
        self.fleet.update({name: Beat(beat) for name, beat in beats.items()}, now)

    def guest(self, tokens: int, tenant: str = "", priority: int = 0, deadline: float = inf) -> Guest:
        self._prompts += 1
        hashes = list(blocks(self._prompts, tokens // 16))
        return Guest(RouteRequest(tokens, hashes), tokens, Terms(tenant, priority, deadline))

    def come(self, guest: Guest, now: float = 0.0) -> Guest:
        assert self.desk.arrive(guest, now)
        if not guest.is_held:
            self._take(guest, now)
        return guest

    def release(self, now: float) -> list[Guest]:
        gone = []
        while (guest := self.desk.next(now)) is not None:
            self._take(guest, now)
            gone.append(guest)
        return gone

    def first_token(self, guest: Guest, now: float) -> None:
        self.leases.pop(guest).release(now)
        self.desk.leave(guest, now)

    def _take(self, guest: Guest, now: float) -> None:
        assert guest.considered is not None
        self.leases[guest] = self.router.take(guest.request, guest.considered.decision, now)


def fill(rig: Rig, count: int, tokens: int = 600) -> list[Guest]:
    return [rig.come(rig.guest(tokens)) for _ in range(count)]


def test_nobody_waits_while_a_replica_is_idle() -> None:
    rig = Rig("a", "b")
    assert not any(guest.is_held for guest in fill(rig, 2))


def test_whoever_has_enough_before_it_waits_and_goes_when_it_is_done() -> None:
    rig = Rig("a")
    guests = fill(rig, 5)
    held = [guest for guest in guests if guest.is_held]
    assert 2 <= len(held) <= 3
    assert rig.release(0.0) == []
    sent = [guest for guest in guests if not guest.is_held]
    rig.first_token(sent[0], 0.6)
    assert rig.release(0.6)[0] is held[0]
    assert held[0].held_s == pytest.approx(0.6)


def test_it_may_go_by_itself_when_it_was_said() -> None:
    rig = Rig("a")
    fill(rig, 4)
    at = rig.desk.next_at(0.0)
    assert 0 < at < 2
    assert rig.release(at / 2) == []
    assert len(rig.release(at + 0.01)) == 1


def test_a_short_one_passes_where_the_replica_lets_it_pass() -> None:
    rig = Rig("a")
    fill(rig, 3)
    short = rig.come(rig.guest(32))
    assert rig.release(0.0) == [short]


def test_a_policy_that_binds_early_holds_nobody() -> None:
    rig = Rig("a", policy="least_tokens")
    assert not any(guest.is_held for guest in fill(rig, 8))


def test_whatever_the_policy_a_tenant_with_more_than_its_share_waits_for_others() -> None:
    rig = Rig("a", policy="least_tokens")
    greedy = [rig.come(rig.guest(600, "greedy")) for _ in range(6)]
    assert not any(guest.is_held for guest in greedy)
    modest = rig.come(rig.guest(600, "modest"))
    assert not modest.is_held
    greedy += [rig.come(rig.guest(600, "greedy")) for _ in range(2)]
    assert greedy[-1].is_held
    rig.first_token(modest, 0.5)
    assert rig.release(0.5) == [greedy[-1]]


def test_held_tenants_take_turns() -> None:
    rig = Rig("a")
    fill(rig, 2)
    greedy = [rig.come(rig.guest(600, "greedy")) for _ in range(8)]
    modest = [rig.come(rig.guest(600, "modest")) for _ in range(2)]
    assert all(guest.is_held for guest in modest)
    order: list[Guest] = []
    now = 0.0
    while len(rig.desk.room):
        now += 0.05
        for guest in list(rig.leases):
            if now > 0.7 * (1 + len(order)):
                rig.first_token(guest, now)
                break
        order += rig.release(now)
    assert max(order.index(guest) for guest in modest) <= 4
    assert [guest for guest in order if guest in greedy] == [guest for guest in greedy if guest in order]


def test_the_urgent_go_first() -> None:
    rig = Rig("a")
    fill(rig, 3)
    later = rig.come(rig.guest(600, priority=1))
    urgent = rig.come(rig.guest(600, priority=-1))
    assert later.is_held and urgent.is_held
    rig.beats["a"] = Load()
    for guest in list(rig.leases):
        rig.first_token(guest, 1.0)
    assert rig.release(1.0)[0] is urgent


def test_a_replica_that_arrives_gets_what_is_held() -> None:
    rig = Rig("a")
    fill(rig, 6)
    held = len(rig.desk.room)
    assert held
    rig.beats["b"] = Load()
    rig.beat(0.6)
    rig.router.index.load("b", Snapshot("e1", 0, "0-0", ()))
    gone = rig.release(1.5)
    assert any(guest.considered is not None and guest.considered.decision.choice == "b" for guest in gone)


def test_who_waits_for_a_replica_that_dies_goes_elsewhere() -> None:
    rig = Rig("a", "b")
    fill(rig, 9)
    assert set(rig.desk.room.lanes) == {"a", "b"}
    rig.fleet.trip("a", 0.1)
    for guest in list(rig.leases):
        rig.first_token(guest, 0.2)
    now = 0.2
    while len(rig.desk.room):
        now += 0.1
        for guest in rig.release(now):
            assert guest.considered is not None
            assert guest.considered.decision.choice == "b"
            rig.first_token(guest, now)
        assert now < 20


def test_who_leaves_while_it_waits_leaves_nothing() -> None:
    rig = Rig("a")
    guests = fill(rig, 9)
    for guest in guests:
        rig.desk.leave(guest, 0.5)
        rig.desk.leave(guest, 0.5)
    assert len(rig.desk.room) == rig.desk.room.tokens == rig.desk.shares.tenants == 0
    assert rig.desk.room.lanes == {}
    assert rig.desk.next_at(0.5) == inf


def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    rig = Rig("a", bounds=Bounds(max_tokens=3000))
    fill(rig, 5)
    with pytest.raises(QueueFull) as refused:
        rig.come(rig.guest(600))
    assert refused.value.retry_after_s == pytest.approx(0.6, rel=0.2)
    assert rig.desk.shares.open_tokens("") == 3000


def test_a_tenant_that_fills_the_queue_keeps_no_other_out() -> None:
    rig = Rig("a", bounds=Bounds(max_s=3.06))
    for _ in range(5):
        rig.come(rig.guest(600, "greedy"))
    with pytest.raises(QueueFull):
        rig.come(rig.guest(600, "greedy"))
    rig.come(rig.guest(600, "modest"))
    with pytest.raises(QueueFull):
        rig.come(rig.guest(1200, "modest"))


def test_a_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    rig = Rig("a")
    fill(rig, 5)
    with pytest.raises(DeadlineOutOfReach, match="predicted in"):
        rig.come(rig.guest(600, deadline=1.0))
    rig.come(rig.guest(600, deadline=60.0))
    assert len(rig.desk.room) == 4


def test_a_replica_that_was_tried_is_never_chosen_again() -> None:
    rig = Rig("a", "b")
    fill(rig, 9)
    guest = rig.guest(600)
    guest.tried = frozenset({("a", "e1")})
    rig.come(guest)
    assert guest.target == "b"
    for other in list(rig.leases):
        rig.first_token(other, 1.0)
    now = 1.0
    while guest.considered is None:
        now += 0.05
        for gone in rig.release(now):
            rig.first_token(gone, now)
    assert guest.considered.decision.choice == "b"


def test_whom_no_replica_may_take_is_told_in_time() -> None:
    rig = Rig("a")
    fill(rig, 5)
    rig.fleet.trip("a", 0.1)
    assert rig.desk.stranded(0.2, 1.0) == []
    assert rig.desk.next(0.3) is None
    assert len(rig.desk.stranded(1.3, 1.0)) == len(rig.desk.room) > 0


def test_held_ones_that_share_a_prefix_are_decided_over_when_it_comes() -> None:
    rig = Rig("a")
    fill(rig, 2)
    shared = list(blocks(99, 40))
    first, second = (Guest(RouteRequest(641, shared), 641) for _ in range(2))
    for guest in (first, second):
        rig.come(guest)
        assert guest.is_held
    for guest in list(rig.leases):
        rig.first_token(guest, 1.0)
    assert rig.release(1.0) == [first, second]
    assert second.uncached == 1


def test_what_is_held_counts_for_those_that_come_after() -> None:
    rig = Rig("a", "b")
    fill(rig, 12)
    plain = rig.fleet.candidates(rig.fleet.open(0.0), {}, 0.0)
    tokens = rig.desk.room.added_to(plain, "").queue_tokens
    assert tokens.sum() == 12 * 600
    assert max(tokens) - min(tokens) <= 600
    assert plain.queue_tokens.sum() < 12 * 600
