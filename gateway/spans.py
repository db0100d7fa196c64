"""A request's spans, made when it has ended, from what its trace has noted. Pure.

POST /v1/chat/completions        server; the parent is the client's span, if it sent one
  tokenise
  route                          until it goes to the first replica: waiting for one included
  attempt                        client, one for each replica tried; the replica's own spans are below it
"""

from collections.abc import Callable
from itertools import pairwise

from gateway.access_log import Answered, Course
from gateway.traces import Trace
from replica.protocol.spans import Randbits, Span, SpanContext, Value

_NS = 1e9


def request_spans(trace: Trace, answered: Answered, went: Course, ended_at_ns: int, randbits: Randbits) -> list[Span]:
    """Nothing where the request isn't traced. `ended_at_ns`: since the epoch."""
    root, took_s, status = trace.span, answered.took_s, answered.status
    if root is None or not root.sampled:
        return []
    began_ns = ended_at_ns - int(took_s * _NS)

    def at(seconds: float) -> int:
        return began_ns + int(seconds * _NS)

    failure = trace.attempts[-1].failure if trace.attempts else None
    error = (answered.code or failure or str(status)) if status >= 400 or failure else None
    name = f"{answered.method} {answered.endpoint}"
    spans = [Span(root, name, began_ns, ended_at_ns, _attributes(trace, status, went), "server", error)]
    tokenised, sent = trace.last_at("tokenised"), _dispatched(trace)
    if tokenised is not None:
        spans.append(Span(root.child(randbits), "tokenise", began_ns, at(tokenised)))
        spans.append(Span(root.child(randbits), "route", at(tokenised), at(sent[0] if sent else took_s)))
    return spans + _attempts(trace, sent, took_s, at)


def _attempts(trace: Trace, sent: list[float], took_s: float, at: Callable[[float], int]) -> list[Span]:
    spans = []
    for attempt, (start, end) in zip(trace.attempts, pairwise([*sent, took_s]), strict=False):
        if attempt.span is not None:
            attributes: dict[str, Value] = {"ryokan.replica": attempt.replica}
            spans.append(Span(attempt.span, "attempt", at(start), at(end), attributes, "client", attempt.failure))
    return spans


def _dispatched(trace: Trace) -> list[float]:
    return [at - trace.received_at for name, at, _ in trace.marks if name == "dispatched"]


def _attributes(trace: Trace, status: int, went: Course) -> dict[str, Value]:
    """Names of OpenTelemetry's conventions where it has one."""
    decision = None if trace.considered is None else trace.considered.decision
    found: dict[str, Value | None] = {
        "http.response.status_code": status,
        "ryokan.request_id": trace.request_id,
        "gen_ai.request.model": trace.model,
        "gen_ai.usage.input_tokens": trace.prompt_tokens or None,
        "gen_ai.usage.output_tokens": went.output_tokens or None,
        "ryokan.tenant": trace.tenant,
        "ryokan.replica": None if decision is None else decision.choice,
        "ryokan.policy": None if decision is None else decision.policy,
        "ryokan.reason": None if trace.considered is None else trace.considered.reason.value,
        "ryokan.cached_tokens.predicted": None if decision is None else decision.cached_tokens,
        "ryokan.cached_tokens.delivered": trace.delivered_tokens,
        "ryokan.ttft_s": went.ttft_s,
    }
    return {name: value for name, value in found.items() if value is not None}


def span_of(parent: SpanContext | None, is_on: bool, begin: Callable[[], SpanContext], randbits: Randbits) -> (
    SpanContext | None
):  # fmt: skip
    """A request's own span. Where no spans are made here, the client's is passed on, so that the replica's hang below
    it."""
    if not is_on:
        return parent
    return begin() if parent is None else parent.child(randbits)
