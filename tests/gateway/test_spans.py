"""A request's spans, from its trace."""

import random

from gateway.access_log import Answered, course
from gateway.spans import request_spans, span_of
from gateway.traces import Attempt, Trace
from replica.protocol.spans import begin, parse_traceparent
from tests.gateway.test_traces import decision

BITS = random.Random(3).getrandbits
CLIENT = parse_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


def traced() -> Trace:
    assert CLIENT is not None
    trace = Trace("id1", 0.0)
    trace.model, trace.span = "tiny", CLIENT.child(BITS)
    trace.mark("received", 0.0)
    return trace


def test_attempts_hang_below_the_request_and_it_below_the_client() -> None:
    trace = traced()
    trace.tokenised(1.0, tokens=17)
    trace.dispatched(2.0, "r0")
    trace.dispatched(3.0, "r1")
    trace.first_byte(4.0)
    assert CLIENT is not None and trace.span is not None
    trace.considered = decision(2)
    trace.attempts = [
        Attempt("r0", "closed", span=trace.span.child(BITS)),
        Attempt("r1", span=trace.span.child(BITS)),
    ]
    answered = Answered("POST", "/v1/completions", "/v1/completions", 200, 5.0)
    spans = request_spans(trace, answered, course(trace, 5.0), 10**18, BITS)
    root = spans[0]
    assert (root.name, root.context.parent_id, root.kind, root.error) == (
        "POST /v1/completions",
        CLIENT.span_id,
        "server",
        None,
    )
    began = 10**18 - 5 * 10**9
    assert [(span.name, (span.start_ns - began) / 1e9, (span.end_ns - began) / 1e9) for span in spans] == [
        ("POST /v1/completions", 0, 5),
        ("tokenise", 0, 1),
        ("route", 1, 2),
        ("attempt", 2, 3),
        ("attempt", 3, 5),
    ]
    assert {span.context.parent_id for span in spans[1:]} == {root.context.span_id}
    assert {span.context.trace_id for span in spans} == {CLIENT.trace_id}
    assert [span.error for span in spans[3:]] == ["closed", None]
    assert root.attributes["ryokan.ttft_s"] == 4 and root.attributes["gen_ai.request.model"] == "tiny"


def test_a_request_that_never_got_far_still_has_its_span() -> None:
    trace = traced()
    answered = Answered("POST", "/v1/completions", "/v1/completions", 400, 0.5, code="invalid_value")
    [span] = request_spans(trace, answered, course(trace, 0.5), 10**18, BITS)
    assert span.error == "invalid_value"


def test_what_the_client_doesn_t_sample_isn_t_sampled_here() -> None:
    unsampled = parse_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
    trace = Trace("id1", 0.0)
    trace.span = span_of(unsampled, True, lambda: begin(BITS), BITS)
    answered = Answered("POST", "/", "/", 200, 1.0)
    assert trace.span is not None and trace.span.traceparent.endswith("-00")
    assert request_spans(trace, answered, course(trace, 1.0), 10**18, BITS) == []


def test_where_no_spans_are_made_the_client_s_context_is_passed_on() -> None:
    assert span_of(CLIENT, False, lambda: begin(BITS), BITS) is CLIENT
    assert span_of(None, False, lambda: begin(BITS), BITS) is None
    made = span_of(None, True, lambda: begin(BITS), BITS)
    assert made is not None and made.parent_id is None
