"""A decision in words and numbers: headers for the client, and what `/route/explain` says at 3 am."""

from dataclasses import asdict
from typing import Any

import numpy as np

from gateway.router import Barred, Considered
from gateway.routing.base import Decision
from gateway.routing.ladder import STEPS
from gateway.routing.reason import Reason
from gateway.routing.wait import TIE, predicted_ttft_s
from gateway.traces import Trace
from replica.protocol import headers

DIGITS = 6
NOT_ROUTED: dict[str, Any] = {"policy": None, "replica": None, "predicted_cached_tokens": None, "candidates": []}


def decision_headers(considered: Considered | None) -> dict[str, str]:
    if considered is None:
        return {}
    decision = considered.decision
    predicted_s = predicted_ttft_s(decision)
    found = {
        headers.REPLICA: decision.choice,
        headers.POLICY: decision.policy,
        headers.REASON: considered.reason._value_,  # `value` is a Python function of the enum's.
        headers.CACHED_TOKENS: str(decision.cached_tokens),
    }
    if predicted_s is not None:
        found[headers.PREDICTED_TTFT] = f"{predicted_s:.6f}"
    return found


def explained(trace: Trace) -> dict[str, Any]:
    """The decision of the last attempt, and what came of it."""
    considered = trace.considered
    if considered is None:
        text = "it is waiting for a replica, or none could take it" if trace.prompt_tokens else "it was refused"
        if trace.prompts:
            text = f"each of its prompts was by itself: {', '.join(trace.prompts)}"
        decided = {"summary": f"not routed: {text}", **NOT_ROUTED}
    else:
        decided = decision_explained(considered)
    return {
        "request_id": trace.request_id,
        "model": trace.model,
        **decided,
        "prompt_tokens": trace.prompt_tokens,
        "held_s": _rounded(trace.held_s),
        "delivered_cached_tokens": trace.delivered_tokens,
        "attempts": [asdict(attempt) for attempt in trace.attempts],
        "outcome": _outcome(trace),
        "shadow": _shadow(trace),
    }


def decision_explained(considered: Considered) -> dict[str, Any]:
    decision = considered.decision
    rows = sorted(decision.rows().items(), key=lambda item: (item[0] != decision.choice, item[1]["behind"], item[0]))
    cached = dict(zip(decision.candidates, considered.candidates.cached_tokens(considered.request.tokens), strict=True))
    return {
        "summary": _summary(considered),
        "policy": decision.policy,
        "replica": decision.choice,
        "reason": considered.reason.value,
        "prompt_tokens": considered.request.tokens,
        "predicted_cached_tokens": decision.cached_tokens,
        "predicted_held_tokens": decision.held_tokens,
        "predicted_ttft_s": _rounded(predicted_ttft_s(decision)),
        "candidates": [
            {
                "replica": replica,
                "why": "chosen" if replica == decision.choice else _why_not(considered, replica, cached),
                "largest_difference": _largest_difference(decision, replica),
                "matched_tokens": int(cached[replica]),
                **{name: _rounded(value) for name, value in row.items()},
            }
            for replica, row in rows
        ],
        "barred": [{"replica": each.replica, "why": _why_barred(each)} for each in considered.barred],
    }


def _summary(considered: Considered) -> str:
    """Who was chosen, why, and when the first token is predicted."""
    decision, candidates, tokens = considered.decision, considered.candidates, considered.request.tokens
    cached = candidates.cached_tokens(tokens)
    most = int(cached.argmax())
    count = int(np.count_nonzero(cached == cached[most]))
    has = "has" if decision.held_tokens == decision.cached_tokens else "has, or is just computing,"
    mine = f"it {has} {decision.cached_tokens:,} of the {tokens:,} prompt tokens cached"
    left = f"{mine}; {candidates.ids[most]} has {cached[most]:,.0f}, but"
    as_much = {1: "more than any other", 2: "as has one other"}.get(count, f"as have {count - 1} others")
    texts = {
        Reason.RETRY: f"the request had failed elsewhere (see attempts); {mine}",
        Reason.ONLY: f"no other could take the request; {mine}",
        Reason.COLD: f"none of the {len(candidates)} candidates has any of the {tokens:,} prompt tokens cached",
        Reason.HIT: f"{mine}, {as_much}",
        Reason.LOAD: f"{left} is so loaded that waiting there costs more than computing the rest anew",
        Reason.TIE: f"{left} would answer at the same time",
        Reason.SPREAD: f"{left} {decision.policy} puts new contexts where there is room, at a small extra cost",
        Reason.POLICY: f"{left} {decision.policy} doesn't decide by that",
    }
    predicted_s = predicted_ttft_s(decision)
    predicted = "" if predicted_s is None else f"; first token predicted in {_seconds(predicted_s)}"
    return f"{decision.choice} was chosen: {texts[considered.reason]}{predicted}"


def _why_not(considered: Considered, replica: str, cached: dict[str, float]) -> str:
    """`0.052 s behind, most of it prefill (+0.061 s); it has 0 tokens cached, the choice 1,008`."""
    decision = considered.decision
    place = decision.candidates.index(replica)
    cost, least = float(decision.cost[place]), float(decision.cost[decision.place])
    in_seconds = predicted_ttft_s(decision) is not None
    largest = _largest_difference(decision, replica)
    if not in_seconds:
        gap = f"{'behind' if cost > least else 'ahead'} by {abs(cost - least):g}" if cost != least else "equal"
        text = f"{gap} in {decision.policy}'s own count"
    elif abs(cost - least) <= (TIE - 1) * least:
        text = "as good as the choice; equals are told apart by room, then by a hash"
    elif cost < least:
        text = f"{_seconds(least - cost)} cheaper, but the policy spreads new contexts to where there is room"
    else:
        text = f"{_seconds(cost - least)} behind"
        if largest is not None:
            term = largest["term"].removesuffix("_s").replace("_", " ")
            text += f", most of it {term} ({largest['difference_s']:+.3f} s)"
    mine, its = cached[decision.choice], cached[replica]
    return text if mine == its else f"{text}; it has {its:,.0f} tokens cached, the choice {mine:,.0f}"


def _largest_difference(decision: Decision, replica: str) -> dict[str, Any] | None:
    """The term in seconds that does most to set it apart from the choice, in the direction of the whole difference."""
    place = decision.candidates.index(replica)
    sign = 1 if decision.cost[place] >= decision.cost[decision.place] else -1
    differences = {
        name: float(column[place] - column[decision.place])
        for name, column in decision.columns.items()
        if name.endswith("_s")
    }
    if not differences or place == decision.place:
        return None
    term = max(differences, key=lambda name: differences[name] * sign)
    return {"term": term, "difference_s": _rounded(differences[term])}


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 0.001 else "less than 0.001 s"


def _why_barred(barred: Barred) -> str:
    states = {
        "ready": "this request has failed on it already, or its context is too small",
        "draining": "it is draining and takes nothing new",
        "stuck": "its engine stands still",
        "ejected": "it has failed lately and is left alone for a while",
        "gone": "it sends no heartbeat any more",
    }
    return f"has {barred.held_tokens:,} tokens cached, more than any candidate, but {states[barred.state]}"


def _shadow(trace: Trace) -> dict[str, Any] | None:
    compared = trace.sent.shadow if trace.sent else None
    if compared is None:
        return None
    return {
        "policy": compared.decision.policy,
        "replica": compared.decision.choice,
        "same": compared.same,
        "predicted_cached_tokens": compared.decision.cached_tokens,
        "predicted_ttft_s": _rounded(compared.shadow_wait_s),
        "live_predicted_ttft_s": _rounded(compared.live_wait_s),
    }


def _outcome(trace: Trace) -> dict[str, Any]:
    """What is known by now."""
    first_byte, dispatched = trace.last_at("first_byte"), trace.last_at("dispatched")
    failure = trace.attempts[-1].failure if trace.attempts else None
    if failure is not None or first_byte is None or dispatched is None or first_byte < dispatched:
        refused = failure is None and trace.last_at("done") is not None
        state = "failed" if failure else "refused by the replica" if refused else "no first token yet"
        return {"state": state, "text": state if failure is None else f"failed: {failure}"}
    wait_s = first_byte - dispatched
    outcome = {"state": "answered", "ttft_s": first_byte, "replica_ttft_s": _rounded(wait_s)}
    if trace.judged is None or trace.considered is None:
        return outcome | {"text": f"first token {wait_s:.3f} s after it was sent; what the cache delivered isn't known"}
    return outcome | _judged(trace, trace.considered, wait_s)


def _judged(trace: Trace, considered: Considered, wait_s: float) -> dict[str, Any]:
    assert trace.judged is not None
    ladder, regret = trace.judged.ladder, trace.judged.regret
    cache_s = regret.actual_s - regret.believed_s
    rest_s = wait_s - regret.actual_s
    regret_s = sum(regret.causes.values())
    text = (
        f"first token {_seconds(wait_s)} after it was sent, predicted {_seconds(regret.believed_s)}; "
        f"{trace.delivered_tokens:,} tokens came from the cache, predicted {considered.decision.cached_tokens:,}"
    )
    if ladder.losses:
        lost = ", ".join(f"{tokens:,} tokens ({cause})" for cause, tokens in ladder.losses.items())
        text += f"; missed of what the fleet had computed before: {lost}"
    if regret.causes:
        text += f"; {regret.best} would have been {_seconds(regret_s)} quicker ({', '.join(regret.causes)})"
    return {
        "text": text,
        "ttft_error_s": {
            "total": _rounded(wait_s - regret.believed_s),
            "by_cache": _rounded(cache_s),
            "by_load_and_cost_model": _rounded(rest_s),
        },
        "ladder": {step: getattr(ladder, step) for step in STEPS},
        "lost_tokens": dict(ladder.losses),
        "regret_s": {
            "total": _rounded(regret_s),
            "best": regret.best,
            **{cause: _rounded(seconds) for cause, seconds in regret.causes.items()},
        },
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
