"""What somebody reads who was woken by it."""

from typing import Any

from prometheus_client import CollectorRegistry

from gateway.explain import decision_explained, decision_headers, explained
from gateway.hindsight import Hindsight
from gateway.metrics import Metrics
from gateway.router import Barred, Considered
from gateway.routing.base import RouteRequest
from gateway.routing.registry import make_policy
from gateway.routing.seen import SeenBlocks
from gateway.routing.shadow import Shadow
from gateway.traces import Attempt, Trace
from tests.gateway.fakes import blocks
from tests.gateway.routing.views import View, candidates, view

REQUEST = RouteRequest(1025, blocks(1, 64))


def considered(*views: View, policy: str = "ttft", barred: tuple[Barred, ...] = (), retry: bool = False) -> Considered:
    fleet = candidates(*views)
    return Considered(REQUEST, make_policy(policy).choose(REQUEST, fleet, 0.0), fleet, barred, retry)


def held(replica: str, count: int, **changes: object) -> View:
    return view(replica, matched_blocks=count, held_blocks=count, **changes)


def traced(decision: Considered, delivered: int | None, wait_s: float = 0.5) -> Trace:
    hindsight = Hindsight("m", lambda _: True, Metrics(CollectorRegistry()), Shadow(), SeenBlocks(1 << 12))
    trace = Trace("x", 100.0)
    trace.prompt_tokens, trace.considered, trace.delivered_tokens = 1025, decision, delivered
    trace.attempts.append(Attempt(decision.decision.choice))
    trace.dispatched(100.1, decision.decision.choice)
    trace.first_byte(100.1 + wait_s)
    trace.sent = hindsight.sent(decision, 100.1)
    if delivered is not None:
        trace.judged = hindsight.told(decision, trace.sent, delivered)
    return trace


def test_headers_of_a_policy_that_counts_in_seconds() -> None:
    found = decision_headers(considered(held("a", 32), view("b")))
    predicted = found.pop("x-ryokan-predicted-ttft")
    assert 0.1 < float(predicted) < 0.2
    assert found == {
        "x-ryokan-replica": "a",
        "x-ryokan-policy": "ttft",
        "x-ryokan-reason": "hit",
        "x-ryokan-cached-tokens": "512",
    }


def test_headers_of_one_that_doesn_t_and_of_no_decision() -> None:
    assert "x-ryokan-predicted-ttft" not in decision_headers(considered(view("a"), policy="least_tokens"))
    assert decision_headers(None) == {}


def test_each_candidate_is_explained_the_choice_first() -> None:
    said = decision_explained(considered(view("c", queue_tokens=5000), view("b"), held("a", 32)))
    assert said["summary"] == (
        "a was chosen: it has 512 of the 1,025 prompt tokens cached, more than any other; "
        "first token predicted in 0.112 s"
    )
    a, b, c = said["candidates"]
    assert (a["replica"], a["why"], a["largest_difference"], a["behind"]) == ("a", "chosen", None, 0)
    assert b["why"].startswith(f"{b['behind']:.3f} s behind, most of it prefill (+0.109 s)")
    assert b["why"].endswith("; it has 0 tokens cached, the choice 512")
    assert c["why"].startswith(f"{c['behind']:.3f} s behind, most of it queue (+{c['queue_s']:.3f} s)")
    assert c["largest_difference"] == {"term": "queue_s", "difference_s": c["queue_s"]}
    assert a["matched_tokens"] == 512 and {"queue_s", "prefill_s", "cost"} <= a.keys()


def summary(*views: View, policy: str = "ttft", retry: bool = False) -> Any:
    return decision_explained(considered(*views, policy=policy, retry=retry))["summary"].split(";")[0]


def test_the_reason_is_said_in_words() -> None:
    assert "no other could take the request" in summary(view("a"))
    assert "failed elsewhere" in summary(view("a"), view("b"), retry=True)
    assert summary(view("a"), view("b")).endswith("none of the 2 candidates has any of the 1,025 prompt tokens cached")
    assert summary(held("a", 9), held("b", 9)).endswith("144 of the 1,025 prompt tokens cached, as has one other")
    assert summary(held("a", 9), held("b", 9), held("c", 9)).endswith("cached, as have 2 others")
    assert "it has, or is just computing, 768 of the" in summary(view("a", matched_blocks=48), view("b"))
    loaded = decision_explained(considered(view("a"), held("b", 9, queue_tokens=5000)))["summary"]
    assert "b has 144, but is so loaded that waiting there costs more" in loaded
    blind = decision_explained(considered(view("a"), held("b", 9), policy="round_robin"))["summary"]
    assert blind.endswith("b has 144, but round_robin doesn't decide by that")


def test_a_policy_s_own_count_is_no_seconds() -> None:
    said = decision_explained(considered(view("a"), view("b"), policy="round_robin"))
    assert [row["why"] for row in said["candidates"]] == ["chosen", "behind by 1 in round_robin's own count"]
    assert said["predicted_ttft_s"] is None
    equal = decision_explained(considered(view("a"), view("b"), policy="least_tokens"))["candidates"][1]
    assert equal["why"] == "equal in least_tokens's own count"


def test_equals_and_cheaper_ones_that_were_left() -> None:
    equal = decision_explained(considered(view("a"), view("b")))["candidates"][1]
    assert equal["why"] == "as good as the choice; equals are told apart by room, then by a hash"
    fleet = held("a", 2, free_blocks=0, reuse=0.0), view("b", free_blocks=900, reuse=0.0)
    left = decision_explained(considered(*fleet))
    assert left["reason"] == "spread" and "puts new contexts where there is room" in left["summary"]
    assert "cheaper, but the policy spreads new contexts" in left["candidates"][1]["why"]


def test_who_couldn_t_be_chosen_is_named() -> None:
    barred = (Barred("z", "draining", 1024), Barred("y", "ready", 512))
    said = decision_explained(considered(view("a"), barred=barred))
    assert [row["replica"] for row in said["barred"]] == ["z", "y"]
    assert said["barred"][0]["why"] == (
        "has 1,024 tokens cached, more than any candidate, but it is draining and takes nothing new"
    )


def test_what_really_happened() -> None:
    outcome = explained(traced(considered(held("a", 64), held("b", 48)), delivered=0))["outcome"]
    assert outcome["text"] == (
        "first token 0.500 s after it was sent, predicted 0.005 s; 0 tokens came from the cache, predicted 1,024; "
        "missed of what the fleet had computed before: 1,024 tokens (stale); b would have been 0.162 s quicker (stale)"
    )
    error = outcome["ttft_error_s"]
    assert abs(error["total"] - error["by_cache"] - error["by_load_and_cost_model"]) < 2e-6
    assert outcome["ladder"]["usable"] == 1024 and outcome["lost_tokens"] == {"stale": 1024}
    assert outcome["regret_s"]["total"] == outcome["regret_s"]["stale"] > 0


def test_a_replica_that_doesn_t_say_what_was_cached() -> None:
    outcome = explained(traced(considered(view("a")), delivered=None))["outcome"]
    assert outcome["text"].endswith("what the cache delivered isn't known")
    assert outcome["replica_ttft_s"] == 0.5


def test_before_the_first_token_and_after_a_failure() -> None:
    trace = traced(considered(view("a"), view("b")), delivered=0)
    trace.attempts[-1].failure = "closed"
    assert explained(trace)["outcome"]["text"] == "failed: closed"
    trace.attempts.append(Attempt("b"))
    trace.dispatched(101.0, "b")
    assert explained(trace)["outcome"]["state"] == "no first token yet"
    trace.mark("done", 102.0)
    assert explained(trace)["outcome"]["state"] == "refused by the replica"


def test_what_was_never_routed() -> None:
    assert explained(Trace("x", 0.0))["summary"] == "not routed: it was refused"
    waiting = Trace("x", 0.0)
    waiting.tokenised(0.1, tokens=3)
    assert "waiting" in explained(waiting)["summary"]
