import random

import orjson
import pytest

from gateway.errors import ConcurrencyLimit, RequestRateLimit
from gateway.tenants.caller import Caller, Limits
from gateway.tenants.ledger import BEAT_S, ENTRIES_MAX, SILENT_S, Ledger
from gateway.tenants.meter import Account, Meter, Usage

ALICE = "tenant alice"


def caller(limits: Limits, whose: str = ALICE) -> Caller:
    return Caller("k", "alice", {whose: limits})


class Worker:
    def __init__(self, number: int, process: str = "") -> None:
        self.meter = Meter(shared=True)
        self.ledger = Ledger(self.meter, number, process or f"p{number}")

    def account(self, whose: str = ALICE) -> Account:
        account = self.meter.known(whose)
        assert account is not None
        return account


def exchange(workers: list[Worker], now: float, rounds: int = 2) -> None:
    """Twice, as one that comes anew is told of by the answer to its first word."""
    for _ in range(rounds):
        words = [(worker, word) for worker in workers for word in worker.ledger.to_tell(now)]
        for sender, word in words:
            for worker in workers:
                if worker is not sender:
                    worker.ledger.hear(word.data, now)


def test_what_one_has_spent_all_have() -> None:
    workers = [Worker(0), Worker(1)]
    who = caller(Limits(requests_per_minute=3, tokens_per_minute=600))
    usage = workers[0].meter.begin(who, 0)
    usage.admit(100, 0)
    workers[1].meter.begin(who, 0).admit(50, 0)
    exchange(workers, 0)
    for worker in workers:
        requests, tokens = worker.account().requests, worker.account().tokens
        assert requests is not None and tokens is not None
        assert (requests.level(0), tokens.level(0)) == (1, 450)
    usage.settle(40, 0)
    workers[1].meter.begin(who, 0).close()
    exchange(workers, 0)
    for worker in workers:
        tokens = worker.account().tokens
        assert tokens is not None and tokens.level(0) == 510
        with pytest.raises(RequestRateLimit):
            worker.meter.begin(who, 0)


def test_what_runs_at_one_counts_at_all_until_it_ends() -> None:
    workers = [Worker(number) for number in range(3)]
    who = caller(Limits(concurrent_requests=2))
    running = [workers[0].meter.begin(who, 0), workers[1].meter.begin(who, 0)]
    exchange(workers, 0)
    for worker in workers:
        with pytest.raises(ConcurrencyLimit, match="2 requests at a time"):
            worker.meter.begin(who, 0)
    running[0].close()
    exchange(workers, 0.1)
    workers[2].meter.begin(who, 0.1)


def test_too_much_at_once_is_a_debt_that_is_paid() -> None:
    workers = [Worker(number) for number in range(4)]
    who = caller(Limits(requests_per_minute=60))
    for worker in workers:
        for _ in range(60):
            worker.meter.begin(who, 0).close()
    exchange(workers, 0)
    for at in (1, 180):
        with pytest.raises(RequestRateLimit):
            workers[0].meter.begin(who, at)
    workers[0].meter.begin(who, 181.1)


def test_one_that_is_silent_has_nothing_running_and_one_that_speaks_again_has() -> None:
    one, other = Worker(0), Worker(1)
    who = caller(Limits(concurrent_requests=1))
    usage = one.meter.begin(who, 0)
    exchange([one, other], 0)
    other.ledger.expire(SILENT_S)
    assert other.account().elsewhere == 1
    for now in (SILENT_S + 0.1, SILENT_S + 0.2):
        other.ledger.expire(now)
        assert other.account().elsewhere == 0
    exchange([one, other], 4)
    assert other.account().elsewhere == 1
    usage.close()
    exchange([one, other], 4.1)
    assert other.account().elsewhere == 0


def test_one_that_dies_leaves_nothing_running_and_its_successor_knows_what_was_spent() -> None:
    one, other = Worker(0), Worker(1)
    who = caller(Limits(requests_per_minute=2, concurrent_requests=9))
    one.meter.begin(who, 0)
    other.meter.begin(who, 0)
    exchange([one, other], 0)
    successor = Worker(0, "another")
    exchange([successor, other], 1)
    assert (other.account().elsewhere, successor.account().elsewhere) == (0, 1)
    with pytest.raises(RequestRateLimit):
        successor.meter.begin(who, 1)


def test_a_successor_that_has_begun_to_spend_knows_it_too() -> None:
    one, other, successor = Worker(0), Worker(1), Worker(0, "another")
    who = caller(Limits(requests_per_minute=10))
    for _ in range(8):
        other.meter.begin(who, 0).close()
    exchange([one, other], 0)
    successor.meter.begin(who, 0.1)
    exchange([successor, other], 0.1)
    successor.meter.begin(who, 0.1)
    exchange([successor, other], 0.1)
    for worker in (successor, other):
        with pytest.raises(RequestRateLimit):
            worker.meter.begin(who, 0.1)


def test_what_nobody_had_room_for_is_told_again() -> None:
    one, other = Worker(0), Worker(1)
    who = caller(Limits(concurrent_requests=1))
    exchange([one, other], 0)
    one.meter.begin(who, 0)
    [word] = one.ledger.to_tell(0)
    one.ledger.tell_again(word)
    exchange([one, other], 0)
    assert other.account().elsewhere == 1


def test_it_is_silent_where_there_is_nothing_but_a_beat() -> None:
    one = Worker(0)
    assert len(one.ledger.to_tell(0)) == 1
    assert one.ledger.to_tell(BEAT_S - 0.1) == []
    assert len(one.ledger.to_tell(BEAT_S)) == 1


def test_many_accounts_go_in_several_words_of_less_than_64_kib() -> None:
    one, other = Worker(0), Worker(1)
    limits = Limits(10**9, 10**9, 10**9)
    for number in range(ENTRIES_MAX + 1):
        one.meter.begin(caller(limits, f"key {'k' * 64}{number}"), 0)
    words = one.ledger.to_tell(0)
    assert [len(orjson.loads(word.data)[2]) for word in words] == [ENTRIES_MAX, 1]
    assert all(len(word.data) < 1 << 16 for word in words)
    for word in words:
        other.ledger.hear(word.data, 0)
    assert len(other.meter) == ENTRIES_MAX + 1


def test_an_account_that_is_forgotten_and_comes_back_gives_nothing_back() -> None:
    one, other = Worker(0), Worker(1)
    who = caller(Limits(requests_per_minute=60))
    for _ in range(50):
        one.meter.begin(who, 0).close()
    exchange([one, other], 0)
    one.meter.MAX_IDLE = 0
    one.meter.begin(caller(Limits(requests_per_minute=60), "tenant bob"), 60).close()
    assert one.meter.known(ALICE) is None
    one.meter.begin(who, 60).close()
    exchange([one, other], 60)
    bucket = other.account().requests
    assert bucket is not None and bucket.level(60) == 59


@pytest.mark.parametrize("seed", range(20))
def test_workers_that_tell_each_other_at_once_are_as_one(seed: int) -> None:
    """The oracle is one meter that sees all."""
    rng, now = random.Random(seed), 0.0
    limits = Limits(requests_per_minute=60, tokens_per_minute=6000, concurrent_requests=5)
    workers, alone, who = [Worker(number) for number in range(3)], Meter(), caller(limits)
    exchange(workers, now)
    open_ones: list[tuple[Usage, Usage]] = []
    refused = 0
    for _ in range(400):
        now += rng.random() * 0.3
        action = rng.random()
        if action < 0.5 or not open_ones:
            meter = rng.choice(workers).meter
            outcomes = [_begun(meter, who, now), _begun(alone, who, now)]
            assert isinstance(outcomes[0], Usage) == isinstance(outcomes[1], Usage), outcomes
            if isinstance(outcomes[0], Usage) and isinstance(outcomes[1], Usage):
                open_ones.append((outcomes[0], outcomes[1]))
            else:
                refused += 1
        elif action < 0.8:
            tokens = rng.randrange(1, 300)
            for usage in rng.choice(open_ones):
                usage.spend(tokens, now)
        else:
            tokens = rng.randrange(400)
            for usage in open_ones.pop(rng.randrange(len(open_ones))):
                usage.settle(tokens, now)
                usage.close()
        exchange(workers, now)
    expected = alone.known(ALICE)
    assert expected is not None and refused > 20
    for worker in workers:
        account = worker.account()
        assert account.running + account.elsewhere == expected.running
        for name in ("requests", "tokens"):
            assert getattr(account, name).level(now) == pytest.approx(getattr(expected, name).level(now), abs=1e-6)


def _begun(meter: Meter, who: Caller, now: float) -> Usage | str:
    try:
        return meter.begin(who, now)
    except (ConcurrencyLimit, RequestRateLimit) as error:
        return type(error).__name__
