"""What decisions over a real fleet and index were worth."""

from random import Random

import pytest
from prometheus_client import CollectorRegistry

from gateway.fleet import Beat, Fleet
from gateway.hindsight import Hindsight, Judged
from gateway.index.factory import make_index
from gateway.metrics import Metrics
from gateway.router import Considered, Router
from gateway.routing.base import RouteRequest
from gateway.routing.registry import make_policy
from gateway.routing.seen import SeenBlocks
from gateway.routing.shadow import Shadow
from replica.protocol.records import ReplicaState, Snapshot
from tests.gateway.fakes import IDENTITY, blocks, heartbeat

PATH = list(blocks(1, 64))
PROMPT = RouteRequest(1025, PATH)


class Bench:
    """Replicas a, b, …, and what was counted."""

    def __init__(self, *replicas: str, policy: str = "ttft", shadow: str | None = None, strange: str = "") -> None:
        self.registry = CollectorRegistry()
        self.fleet = Fleet(IDENTITY)
        self.router = Router(self.fleet, make_index(), make_policy(policy))
        self.hindsight = Hindsight(
            "m",
            self.fleet.compatible,
            Metrics(self.registry),
            Shadow(make_policy(shadow) if shadow else None),
            SeenBlocks(1 << 12),
        )
        self.replicas, self.strange = replicas, strange
        self.states: dict[str, ReplicaState] = {}
        self.beat()

    def beat(self, **states: str) -> None:
        self.states |= {name: ReplicaState(state) for name, state in states.items()}
        beats = {
            name: Beat(
                heartbeat(
                    name,
                    state=self.states.get(name, ReplicaState.READY),
                    **({"block_size": 32} if name == self.strange else {}),
                )
            )
            for name in self.replicas
        }
        self.fleet.update(beats, 0.0)

    def holds(self, replica: str, count: int) -> None:
        self.router.index.load(replica, Snapshot("e1", 0, "0-0", tuple(PATH[:count])))

    def decide(self, request: RouteRequest = PROMPT, tried: str = "") -> Considered:
        considered = self.router.consider(request, request.tokens, {(name, "e1") for name in tried}, 0.0)
        assert considered is not None
        return considered

    def ask(self, delivered: int, request: RouteRequest = PROMPT, tried: str = "") -> Judged:
        considered = self.decide(request, tried)
        sent = self.hindsight.sent(considered, 0.0)
        self.hindsight.computed(considered)
        return self.hindsight.told(considered, sent, delivered)

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"ryokan_gateway_{name}_total", labels) or 0.0

    def step(self, step: str) -> float:
        return self.count("prefix_tokens", model="m", step=step)

    def lost(self, cause: str) -> float:
        return self.count("prefix_lost_tokens", model="m", cause=cause)


def test_what_is_new_is_no_loss() -> None:
    bench = Bench("a", "b")
    assert bench.ask(0).ladder.losses == {}
    assert (bench.step("prompt"), bench.step("computed")) == (1025, 0)


def test_what_was_computed_and_is_nowhere_was_evicted() -> None:
    bench = Bench("a", "b")
    bench.ask(0)
    bench.holds("a", 0)
    assert bench.ask(0).ladder.losses == {"evicted": 1024}
    assert (bench.step("prompt"), bench.step("computed"), bench.lost("evicted")) == (2050, 1024, 1024)


def test_what_a_draining_replica_holds_is_lost_to_that() -> None:
    bench = Bench("a", "b")
    bench.holds("a", 64)
    bench.holds("b", 12)
    bench.beat(a="draining")
    [barred] = bench.decide().barred
    assert (barred.replica, barred.state, barred.held_tokens) == ("a", "draining", 1024)
    assert bench.ask(192).ladder.losses == {"draining": 832}


def test_what_a_replica_holds_that_failed_is_lost_to_that() -> None:
    bench = Bench("a", "b")
    bench.holds("a", 64)
    assert bench.ask(0, tried="a").ladder.losses == {"unavailable": 1024}
    bench.fleet.trip("a", 0.0)
    assert [barred.state for barred in bench.decide().barred] == ["ejected"]


def test_a_queue_at_the_holder_is_lost_to_load() -> None:
    bench = Bench("a", "b")
    bench.holds("a", 64)
    bench.fleet.lease("a", 50_000, [], 0.0)
    judged = bench.ask(0)
    assert judged.ladder.losses == {"load": 1024}
    assert judged.regret.causes == {}
    assert bench.count("decisions", policy="ttft", reason="load") == 1


def test_a_digest_that_isn_t_borne_out_is_stale_and_regretted() -> None:
    bench = Bench("a", "b")
    bench.holds("a", 64)
    bench.holds("b", 48)
    judged = bench.ask(0)
    assert judged.ladder.losses == {"stale": 1024}
    assert judged.regret.causes.keys() == {"stale"} and judged.regret.best == "b"
    assert bench.count("regret_seconds", policy="ttft", cause="stale") == pytest.approx(judged.regret.causes["stale"])


def test_a_blind_policy_is_to_blame_itself() -> None:
    bench = Bench("a", "b", policy="round_robin")
    bench.holds("b", 64)
    judged = bench.ask(0)
    assert judged.ladder.losses == {"policy": 1024}
    assert judged.regret.causes.keys() == {"policy"}


def test_what_only_a_replica_without_credit_has_computed_is_told_apart() -> None:
    bench = Bench("a", "b", strange="b")
    bench.ask(0, tried="a")
    assert bench.ask(0, tried="b").ladder.losses == {"fingerprint": 1024}
    assert bench.ask(0, tried="b").ladder.losses == {"evicted": 1024}


def test_what_was_computed_since_a_request_went_out_is_no_loss_to_it() -> None:
    """Of two at once, however late their replicas tell."""
    bench = Bench("a", "b")
    first, second = bench.decide(), bench.decide()
    sent = [bench.hindsight.sent(each, 0.0) for each in (first, second)]
    for each in (first, second):
        bench.hindsight.computed(each)
    judged = [bench.hindsight.told(first, sent[0], 0), bench.hindsight.told(second, sent[1], 0)]
    assert [each.ladder.losses for each in judged] == [{}, {}]


def test_an_answer_that_doesn_t_say_what_was_cached_only_teaches() -> None:
    bench = Bench("a")
    bench.hindsight.computed(bench.decide())
    assert bench.step("prompt") == 0
    assert bench.ask(0).ladder.computed == 1024


def test_a_prompt_that_is_scored_counts_as_never_computed() -> None:
    bench = Bench("a")
    bench.ask(0, RouteRequest(1025, []))
    assert bench.ask(0).ladder.computed == 0


@pytest.mark.parametrize("policy", ["ttft", "least_tokens", "round_robin"])
def test_losses_add_up_over_any_history(policy: str) -> None:
    print("seed", 11)
    rng = Random(11)
    bench = Bench("a", "b", "c", "d", policy=policy, shadow="ttft", strange="d")
    for _ in range(300):
        for name in "abc":
            if rng.random() < 0.3:
                bench.holds(name, rng.randrange(65))
        bench.beat(**{name: rng.choice(("ready", "ready", "draining")) for name in "abc"})
        depth = rng.randrange(1, 65)
        request = RouteRequest(16 * depth + 1, [*PATH[:depth]])
        considered = bench.decide(request)
        sent = bench.hindsight.sent(considered, 0.0)
        lease = bench.router.take(request, considered.decision, 0.0)
        bench.hindsight.computed(considered)
        bench.hindsight.told(considered, sent, 16 * rng.randrange(depth + 1))
        if rng.random() < 0.8:
            lease.release(0.0)
    steps = [bench.step(step) for step in ("computed", "resident", "usable", "chosen", "delivered")]
    assert steps == sorted(steps, reverse=True)
    causes = ("evicted", "fingerprint", "draining", "unavailable", "load", "tie", "spread", "policy", "stale")
    assert sum(map(bench.lost, causes)) == steps[0] - steps[-1] > 0
    agreed = {same: bench.count("shadow_decisions", policy=policy, shadow="ttft", same=same) for same in ("yes", "no")}
    assert sum(agreed.values()) == 300
    if policy == "ttft":
        assert agreed["no"] == 0
