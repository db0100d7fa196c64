import random

from gateway.tenants.bucket import Bucket


def test_a_minute_s_worth_then_as_it_comes() -> None:
    bucket = Bucket(60, now=0)
    for _ in range(60):
        assert bucket.wait_s(1, 0) == 0
        bucket.take(1, 0)
    assert bucket.wait_s(1, 0) == 1
    assert bucket.wait_s(1, 0.5) == 0.5
    assert bucket.wait_s(1, 1) == 0
    assert bucket.level(1000) == 60


def test_what_costs_more_than_it_can_hold_needs_a_full_one_and_leaves_a_debt() -> None:
    bucket = Bucket(60, now=0)
    assert bucket.wait_s(600, 0) == 0
    bucket.take(600, 0)
    assert bucket.wait_s(1, 0) == 541
    assert not bucket.is_full(599)
    assert bucket.is_full(600)
    assert bucket.wait_s(600, 590) == 10


def test_what_is_given_back_never_overflows() -> None:
    bucket = Bucket(60, now=0)
    bucket.take(-100, 0)
    assert bucket.level(0) == 60


def test_a_clock_that_goes_back_pays_nothing() -> None:
    bucket = Bucket(60, now=100)
    bucket.take(60, 100)
    bucket.take(0, 50)
    assert bucket.level(100) == 0


def test_another_size_keeps_what_was_used() -> None:
    bucket = Bucket(60, now=0)
    bucket.take(50, 0)
    bucket.resize(600, 0)
    assert bucket.level(0) == 550
    bucket.resize(30, 0)
    assert bucket.level(0) == -20


def test_over_any_time_no_more_than_the_limit_and_a_bucketful(seed: int) -> None:
    rng = random.Random(seed)
    per_minute = rng.randrange(10, 1000)
    bucket, now, taken = Bucket(per_minute, 0), 0.0, 0
    while now < 600:
        now += rng.expovariate(per_minute / 30)
        cost = rng.randrange(1, 5)
        if bucket.wait_s(cost, now) == 0:
            bucket.take(cost, now)
            taken += cost
    assert 0.8 * per_minute * now / 60 < taken <= per_minute * (1 + now / 60)
