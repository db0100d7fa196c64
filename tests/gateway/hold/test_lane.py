"""A lane against its oracle, and its promises one by one."""

import random
from collections import Counter

import pytest

from gateway.hold.guest import Guest, Terms
from gateway.hold.lane import PRIORITY_DISCOUNT, Lane
from gateway.hold.plain_lane import PlainLane
from gateway.hold.shares import Shares
from gateway.routing.base import RouteRequest

PATIENCE = 1000.0


class Rig:
    """A lane whose guests have something open, as at the front desk."""

    def __init__(self, make: type[Lane] | type[PlainLane] = Lane) -> None:
        self.shares = Shares()
        self.lane = make(self.shares)
        self._count = 0

    def add(self, uncached: int, tenant: str = "", priority: int = 0) -> Guest:
        self._count += 1
        guest = Guest(RouteRequest(uncached, []), uncached, Terms(tenant, priority))
        guest.number, guest.uncached = self._count, uncached
        self.shares.open(tenant, uncached)
        self.lane.add(guest, PATIENCE)
        return guest

    def remove(self, guest: Guest, *, sent: bool) -> None:
        if sent:
            self.shares.serve(guest.terms.tenant, guest.uncached)
        self.lane.remove(guest, sent=sent)
        self.shares.close(guest.terms.tenant, guest.uncached)

    def send(self) -> Guest:
        guest = self.lane.first()
        self.remove(guest, sent=True)
        return guest


@pytest.mark.parametrize("seed", range(30))
def test_a_lane_is_as_its_oracle(seed: int) -> None:
    print(f"seed {seed}")
    randomness = random.Random(seed)
    fast, plain = Rig(), Rig(PlainLane)
    pairs: dict[Guest, Guest] = {}
    tenants, priorities = randomness.choice((1, 3, 12)), randomness.choice((1, 3))
    for _ in range(600):
        draw = randomness.random()
        if draw < 0.52 or not pairs:
            terms = randomness.choice((1, 40, 400, 3000)), f"t{randomness.randrange(tenants)}"
            priority = randomness.randrange(priorities)
            pairs[fast.add(*terms, priority)] = plain.add(*terms, priority)
        elif draw < 0.9:
            first, expected = fast.lane.first(), plain.lane.first()
            assert pairs[first] is expected
            fast.remove(first, sent=True)
            plain.remove(expected, sent=True)
            assert first.patience == expected.patience
            del pairs[first]
        else:
            gone = randomness.choice(list(pairs))
            fast.remove(gone, sent=False)
            plain.remove(pairs.pop(gone), sent=False)
        assert len(fast.lane) == len(plain.lane) == len(pairs)


def test_the_shortest_goes_first_but_not_for_ever() -> None:
    rig = Rig()
    long = rig.add(5000)
    sent = 0
    while True:
        rig.add(100)
        if rig.send() is long:
            break
        sent += 100
    assert sent == PATIENCE


def test_tenants_get_the_same_however_much_they_ask_for() -> None:
    rig = Rig()
    for _ in range(300):
        rig.add(100, "aggressor")
    for _ in range(10):
        rig.add(300, "modest")
    first = Counter[str]()
    for _ in range(40):
        guest = rig.send()
        first[guest.terms.tenant] += guest.uncached
    assert first == {"aggressor": 3000, "modest": 3000}


def test_the_urgent_go_first_and_leave_a_share_to_the_others() -> None:
    rig = Rig()
    for _ in range(100):
        rig.add(10, priority=0)
    low = rig.add(10, priority=1)
    order = [rig.send() for _ in range(100)]
    assert order.index(low) == PRIORITY_DISCOUNT


def test_what_it_was_passed_by_counts_in_another_lane_as_well() -> None:
    rig, other = Rig(), Rig()
    long = rig.add(5000)
    for _ in range(9):
        rig.add(100)
        rig.send()
    rig.lane.remove(long, sent=False)
    other.add(100)
    other.shares.open("", long.uncached)
    other.lane.add(long, PATIENCE)
    other.send()
    other.add(100)
    assert other.send() is long


def test_ten_thousand_that_come_and_go_leave_nothing() -> None:
    rig = Rig()
    guests = [rig.add(number % 977, f"t{number % 501}") for number in range(10_000)]
    for guest in guests[::2]:
        rig.remove(guest, sent=False)
    sent = [rig.send() for _ in range(5000)]
    assert len(rig.lane) == 0
    assert set(sent) == set(guests[1::2])
    with pytest.raises(ValueError):
        rig.lane.first()
