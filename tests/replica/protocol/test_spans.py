import random

import pytest

from replica.protocol.spans import SpanContext, begin, parse_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize("flags", ["00", "01", "03"])
@pytest.mark.parametrize("version", ["00", "cc"])
def test_a_traceparent_is_read_and_written_again(version: str, flags: str) -> None:
    found = parse_traceparent(f"{version}-{TRACE}-{SPAN}-{flags}", "a=b")
    assert found is not None
    assert found.sampled is (flags != "00")
    sampled = "01" if found.sampled else "00"
    assert found.headers == {"traceparent": f"00-{TRACE}-{SPAN}-{sampled}", "tracestate": "a=b"}


@pytest.mark.parametrize(
    "value",
    [
        "",
        "x",
        f"00-{TRACE}-{SPAN}",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01\u0660",
    ],
)
def test_what_is_no_traceparent_is_as_if_absent(value: str) -> None:
    assert parse_traceparent(value) is None


@pytest.mark.parametrize("state", ["x" * 513, "a=\n", "a=\u00e9"])
def test_an_odd_tracestate_is_dropped(state: str) -> None:
    found = parse_traceparent(f"00-{TRACE}-{SPAN}-01", state)
    assert found is not None and "tracestate" not in found.headers


def test_children_stay_in_the_trace(seed: int) -> None:
    bits = random.Random(seed).getrandbits
    root = begin(bits)
    child = root.child(bits)
    assert root.parent_id is None and (child.trace_id, child.parent_id) == (root.trace_id, root.span_id)
    assert child.span_id != root.span_id
    assert parse_traceparent(child.traceparent) == SpanContext(child.trace_id, child.span_id, None)


def test_no_id_is_zero() -> None:
    draws = iter([0, 5, 0, 0, 7])
    context = begin(lambda bits: next(draws))
    assert (context.trace_id, context.span_id) == (5, 7)
