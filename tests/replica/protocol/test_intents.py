import contextlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.protocol.intents import (
    BODY_MAX_BYTES,
    ENTRY_MAX_DONE,
    ENTRY_MAX_HASHES,
    ENTRY_MAX_INTENTS,
    KIND,
    TOKENS_MAX,
    Done,
    Intent,
    Intents,
)
from replica.protocol.records import StreamFields, decode_entry, pack_hashes
from replica.protocol.shape import RecordError

ENTRY = Intents(
    "g1",
    (Intent(7, "r1", 900, 0.004, (1, 2**64 - 1)), Intent(8, "r0", 0, 0.0), Intent(9, "r1", 16, 0.25, (5,))),
    (Done(3, "r2", 0.001), Done(4, "r1", 0.0)),
)


def as_redis_returns(fields: StreamFields) -> dict[bytes, bytes]:
    return {name.encode(): value if isinstance(value, bytes) else value.encode() for name, value in fields.items()}


def read(intents: Intents) -> Intents:
    decoded = Intents.decode(as_redis_returns(intents.encode()))
    routed = tuple(Intent(i.number, i.replica, i.tokens, i.age_s, tuple(i.hashes)) for i in decoded.routed)
    return Intents(decoded.gateway, routed, decoded.done)


def test_an_entry_comes_back_as_it_went() -> None:
    assert read(ENTRY) == ENTRY
    assert read(Intents("g1")) == Intents("g1")


def test_the_largest_entry_is_within_the_bounds() -> None:
    largest = Intents(
        "g" * 64,
        tuple(
            Intent(2**52 + number, "r" * 128, TOKENS_MAX, 9.999, (number,) * (ENTRY_MAX_HASHES // ENTRY_MAX_INTENTS))
            for number in range(ENTRY_MAX_INTENTS)
        ),
        tuple(Done(2**52 + number, "r" * 128, 9.999) for number in range(ENTRY_MAX_DONE)),
    )
    assert read(largest) == largest
    assert len(largest.encode()["body"]) < BODY_MAX_BYTES // 2


def test_an_older_reader_refuses_it_as_one_bad_record() -> None:
    with pytest.raises(RecordError):
        decode_entry(as_redis_returns(ENTRY.encode()))


def body(replicas: object = ("r1",), routed: object = (), done: object = ()) -> bytes:
    return orjson.dumps({"replicas": replicas, "routed": routed, "done": done})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({b"gateway": b""}, "id"),
        ({b"gateway": b"a b"}, "id"),
        ({b"gateway": b"\xff"}, "shape"),
        ({b"body": b""}, "shape"),
        ({b"body": b"[]"}, "shape"),
        ({b"body": b"{}"}, "shape"),
        ({b"body": b" " * (BODY_MAX_BYTES + 1)}, "size"),
        ({b"hashes": bytes(8 * ENTRY_MAX_HASHES + 8)}, "size"),
        ({b"hashes": b"1234567"}, "shape"),
        ({b"body": body(replicas="r1")}, "shape"),
        ({b"body": body(replicas=[1])}, "id"),
        ({b"body": body(replicas=["r 1"])}, "id"),
        ({b"body": body(routed={})}, "shape"),
        ({b"body": body(routed=[[0, 0, 1, 0]])}, "shape"),
        ({b"body": body(routed=[[0, 0, 1, 0, 0, 0]])}, "shape"),
        ({b"body": body(routed=[[0, 1, 1, 0, 0]])}, "shape"),
        ({b"body": body(routed=[[-1, 0, 1, 0, 0]])}, "shape"),
        ({b"body": body(routed=[[0, 0, TOKENS_MAX + 1, 0, 0]])}, "shape"),
        ({b"body": body(routed=[[0, 0, 1.0, 0, 0]])}, "shape"),
        ({b"body": body(routed=[[0, 0, True, 0, 0]])}, "shape"),
        ({b"body": body(routed=[[0, 0, 1, 10_001, 0]])}, "shape"),
        ({b"body": body(routed=[[0, 0, 1, 0, 1]])}, "shape"),
        ({b"body": body(), b"hashes": pack_hashes([1])}, "shape"),
        ({b"body": body(routed=[[0, 0, 1, 0, 0]] * (ENTRY_MAX_INTENTS + 1))}, "size"),
        ({b"body": body(done=[[0, 0]])}, "shape"),
        ({b"body": body(done=[[0, "r1", 0]])}, "shape"),
        ({b"body": body(done=[[0, 0, 0]] * (ENTRY_MAX_DONE + 1))}, "size"),
    ],
)
def test_what_is_wrong_is_refused(changes: dict[bytes, bytes], reason: str) -> None:
    good = {b"kind": KIND.encode(), b"gateway": b"g1", b"body": body(), b"hashes": b""}
    assert Intents.decode(good) == Intents("g1")
    with pytest.raises(RecordError) as caught:
        Intents.decode(good | changes)
    assert caught.value.reason == reason


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**60) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.sampled_from(["replicas", "routed", "done"]), inner),
    max_leaves=20,
)


@given(json_values, st.binary(max_size=40), st.binary(max_size=70))
def test_anything_else_is_a_record_error(value: object, hashes: bytes, gateway: bytes) -> None:
    with contextlib.suppress(RecordError):
        Intents.decode({b"gateway": gateway, b"body": orjson.dumps(value), b"hashes": hashes})
    with contextlib.suppress(RecordError):
        Intents.decode({b"gateway": b"g", b"body": orjson.dumps({"replicas": [], "routed": value, "done": value})})
