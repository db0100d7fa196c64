import random

from replica.phases import Phases, phase_spans
from replica.protocol.spans import parse_traceparent

PARENT = parse_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
BITS = random.Random(1).getrandbits


def times(phases: Phases, outcome: str) -> dict[str, tuple[float, float]]:
    assert PARENT is not None
    spans = phase_spans(phases, PARENT, {"ryokan.replica": "r0"}, outcome, 10.0, 20 * 10**9, BITS)
    assert spans[0].context.parent_id == PARENT.span_id
    assert {span.context.parent_id for span in spans[1:]} == {spans[0].context.span_id}
    assert (spans[0].error is None) is (outcome != "abort")
    return {span.name: (span.start_ns / 1e9, span.end_ns / 1e9) for span in spans}


def test_phases_follow_each_other() -> None:
    phases = Phases(1.0, 2.0, 4.0, 8.0, prompt_tokens=5, output_tokens=5)
    assert (phases.queue_s, phases.prefill_s, phases.decode_s, phases.inference_s) == (1, 2, 4, 6)
    assert phases.per_output_token_s == 1
    assert times(phases, "stop") == {"generate": (11, 20), "queue": (11, 12), "prefill": (12, 14), "decode": (14, 18)}


def test_a_request_that_left_while_queued_has_no_later_phase() -> None:
    phases = Phases(1.0)
    assert (phases.queue_s, phases.prefill_s, phases.decode_s, phases.per_output_token_s) == (None,) * 4
    assert times(phases, "abort") == {"generate": (11, 20), "queue": (11, 20)}


def test_a_request_that_left_while_prefilled_has_no_decode() -> None:
    assert times(Phases(1.0, 3.0), "abort") == {"generate": (11, 20), "queue": (11, 13), "prefill": (13, 20)}


def test_one_token_has_no_time_between() -> None:
    assert Phases(1.0, 2.0, 3.0, 3.0, output_tokens=1).per_output_token_s is None
