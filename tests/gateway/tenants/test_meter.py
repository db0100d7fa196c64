import random
from dataclasses import replace

import pytest

from gateway.errors import ConcurrencyLimit, RequestRateLimit, TokenRateLimit
from gateway.tenants.caller import Caller, Limits
from gateway.tenants.meter import Meter, admit_all


def caller(limits: Limits, tenant: str = "t") -> Caller:
    return Caller("k", tenant, {f"tenant {tenant}": limits})


def test_requests_a_minute() -> None:
    meter, who = Meter(), caller(Limits(requests_per_minute=2))
    for _ in range(2):
        meter.begin(who, 0).close()
    with pytest.raises(RequestRateLimit, match="2 requests a minute") as refused:
        meter.begin(who, 0)
    assert refused.value.retry_after_s == 30
    meter.begin(who, 30).close()
    meter.begin(caller(Limits(requests_per_minute=2), "another"), 0).close()


def test_requests_at_a_time() -> None:
    meter, who = Meter(), caller(Limits(concurrent_requests=1))
    first = meter.begin(who, 0)
    with pytest.raises(ConcurrencyLimit, match="1 requests at a time"):
        meter.begin(who, 0)
    first.close()
    first.close()
    meter.begin(who, 0)
    assert meter.running == 1


def test_tokens_are_paid_as_they_come_and_put_right_at_the_end() -> None:
    meter, who = Meter(), caller(Limits(tokens_per_minute=600))
    usage = meter.begin(who, 0)
    usage.admit(100, 0)
    usage.spend(400, 0)
    again = meter.begin(who, 0)
    with pytest.raises(TokenRateLimit, match="600 tokens a minute") as refused:
        again.admit(101, 0)
    assert refused.value.retry_after_s == pytest.approx(0.1)
    again.close()
    usage.settle(200, 0)
    assert usage.charged == 200
    usage.close()
    usage.spend(1000, 0)
    last = meter.begin(who, 0)
    last.admit(400, 0)
    with pytest.raises(TokenRateLimit):
        last.admit(1, 0)


def test_a_key_s_own_limits_hold_beside_its_tenant_s_and_a_refusal_counts_nowhere() -> None:
    meter = Meter()
    both = {"tenant t": Limits(requests_per_minute=5), "key small": Limits(requests_per_minute=1)}
    small = Caller("small", "t", both)
    meter.begin(small, 0).close()
    for _ in range(9):
        with pytest.raises(RequestRateLimit, match="key small"):
            meter.begin(small, 0)
    for _ in range(4):
        meter.begin(caller(Limits(requests_per_minute=5)), 0).close()
    with pytest.raises(RequestRateLimit, match="tenant t"):
        meter.begin(caller(Limits(requests_per_minute=5)), 0)


def test_new_limits_keep_what_runs() -> None:
    meter, who = Meter(), caller(Limits(concurrent_requests=1))
    running = meter.begin(who, 0)
    wider = replace(who, limits={"tenant t": Limits(concurrent_requests=2, requests_per_minute=9)})
    meter.begin(wider, 0)
    with pytest.raises(ConcurrencyLimit):
        meter.begin(wider, 0)
    running.close()
    meter.begin(wider, 0)


def test_who_is_idle_is_forgotten_in_the_end() -> None:
    meter = Meter()
    meter.MAX_IDLE = 10
    busy = meter.begin(caller(Limits(concurrent_requests=1), "busy"), 0)
    for number in range(1000):
        meter.begin(caller(Limits(requests_per_minute=60), str(number)), 100.0 * number).close()
    assert len(meter) <= 11
    busy.close()


def test_places_are_never_lost(seed: int) -> None:
    rng, meter = random.Random(seed), Meter()
    callers = [caller(Limits(10_000, 10_000, rng.randrange(1, 4)), str(number)) for number in range(3)]
    live = []
    for now in range(3000):
        try:
            usage = meter.begin(rng.choice(callers), now / 10)
            live.append(usage)
            usage.admit(rng.randrange(500), now / 10)
        except (ConcurrencyLimit, RequestRateLimit, TokenRateLimit):
            pass
        if live and rng.random() < 0.6:
            live.pop(rng.randrange(len(live))).close()
        assert meter.running == len(live)


def test_several_requests_at_once_count_all_or_none() -> None:
    meter, who = Meter(), caller(Limits(requests_per_minute=6, concurrent_requests=4))
    with pytest.raises(ConcurrencyLimit, match="4 requests at a time, and each of 5 prompts is one"):
        meter.begin_several(who, 5, 0)
    usages = meter.begin_several(who, 4, 0)
    assert meter.running == 4
    for usage in usages:
        usage.close()
    with pytest.raises(RequestRateLimit, match="6 requests a minute, and each of 3 prompts is one"):
        meter.begin_several(who, 3, 0)
    assert meter.running == 0
    assert len(meter.begin_several(who, 2, 0)) == 2


def test_what_is_withdrawn_has_never_been() -> None:
    meter, who = Meter(), caller(Limits(requests_per_minute=1, concurrent_requests=1))
    meter.begin(who, 0).withdraw(0)
    assert meter.running == 0
    meter.begin(who, 0)


def test_prompts_are_paid_all_or_none() -> None:
    meter, who = Meter(), caller(Limits(tokens_per_minute=600))
    usages = meter.begin_several(who, 3, 0)
    usages[0].spend(1, 0)
    with pytest.raises(TokenRateLimit):
        admit_all(usages, [100, 200, 300], 0)
    assert [usage.charged for usage in usages] == [1, 0, 0]
    admit_all(usages, [100, 200, 299], 0)
    for usage in usages:
        usage.admit(100, 0)
    assert [usage.charged for usage in usages] == [101, 200, 299]
