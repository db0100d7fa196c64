import contextlib
import dataclasses
import json
from collections.abc import Callable
from dataclasses import replace

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replica.protocol.records import (
    ENTRY_MAX_BYTES,
    HEARTBEAT_MAX_BYTES,
    SNAPSHOT_HEAD_MAX_BYTES,
    SNAPSHOT_MAX_BLOCKS,
    CostModel,
    Delta,
    Heartbeat,
    Keys,
    Load,
    RecordError,
    ReplicaState,
    Snapshot,
    StateChange,
    StreamFields,
    check_replica_id,
    check_snapshot_size,
    decode_entry,
    pack_hashes,
    split_snapshot,
    unpack_hashes,
    xor_root,
)
from replica.protocol.signing import Signer

DELTA = Delta("r0", "e1", 3, added=(1, 2**64 - 1), removed=(7,), count=5, root=9)
HEARTBEAT = Heartbeat(
    replica="r0",
    url="http://127.0.0.1:1",
    state=ReplicaState.READY,
    model="m",
    model_fingerprint="mf",
    tokenizer_fingerprint="tf",
    hash_version=1,
    block_size=16,
    max_context=8192,
    epoch="e1",
    cost=CostModel(0.01, 0.001, 1e-6, 0.002, 256),
    load=Load(waiting=1, pending_tokens=800),
)


def as_redis_returns(fields: StreamFields) -> dict[bytes, bytes]:
    return {key.encode(): value if isinstance(value, bytes) else str(value).encode() for key, value in fields.items()}


def test_entries_come_back_as_they_went_but_packed() -> None:
    packed = replace(DELTA, added=pack_hashes(DELTA.added), removed=pack_hashes(DELTA.removed))
    assert decode_entry(as_redis_returns(DELTA.encode())) == packed
    assert packed.encode() == DELTA.encode()
    assert decode_entry(as_redis_returns(StateChange("r1").encode())) == StateChange("r1")


def test_heartbeat_and_snapshot_come_back_as_they_went() -> None:
    assert Heartbeat.decode(HEARTBEAT.encode()) == HEARTBEAT
    snapshot = Snapshot("e1", 4, "12-0", (3, 5, 2**63))
    decoded = Snapshot.decode(*split_snapshot(snapshot.encode()))
    assert decoded == replace(snapshot, hashes=pack_hashes(snapshot.hashes), claimed=(3, 3 ^ 5 ^ 2**63))
    assert decoded.encode() == snapshot.encode()


@pytest.mark.parametrize("field", ["kind", "replica", "epoch", "seq", "added", "root"])
def test_a_delta_without_a_field_is_refused(field: str) -> None:
    fields = as_redis_returns(DELTA.encode())
    del fields[field.encode()]
    with pytest.raises(RecordError):
        decode_entry(fields)


@pytest.mark.parametrize("bad", [{b"added": b"123"}, {b"seq": b"x"}, {b"kind": b"?"}, {b"replica": b"\xff"}])
def test_a_malformed_delta_is_refused(bad: dict[bytes, bytes]) -> None:
    with pytest.raises(RecordError):
        decode_entry(as_redis_returns(DELTA.encode()) | bad)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"null", HEARTBEAT.encode().replace(b'"ready"', b'"?"')])
def test_a_malformed_heartbeat_is_refused(data: bytes) -> None:
    with pytest.raises(RecordError):
        Heartbeat.decode(data)


@pytest.mark.parametrize("root", [b"x", b"-1", b" 1", "١".encode(), b"1" * 21, b"18446744073709551616"])
def test_a_snapshot_with_an_odd_root_is_refused(root: bytes) -> None:
    head, packed = split_snapshot(Snapshot("e1", 4, "12-0", (3, 5)).encode())
    with pytest.raises(RecordError, match="root"):
        Snapshot.decode(head.replace(b'"6"', b'"%s"' % root), packed)


@pytest.mark.parametrize("value", [b"", b"{", b"x" * 2000, b"\x01\n", b"\x01" + b"\n" * 16 + b"{}\nabc"])
def test_a_split_loses_nothing(value: bytes) -> None:
    head, packed = split_snapshot(value)
    assert head + packed == value and packed in (b"", b"abc")


@pytest.mark.parametrize(
    "changes",
    [
        {"replica": None},
        {"replica": "a b"},
        {"replica": "r" * 129},
        {"url": 5},
        {"url": "h" * 513},
        {"state": "gone"},
        {"model": ["m"]},
        {"block_size": 0},
        {"block_size": "16"},
        {"block_size": True},
        {"hash_version": 1.0},
        {"max_context": -1},
        {"max_context": 2**63},
        {"max_context": 10**30},
        {"epoch": ""},
        {"epoch": "e\n1"},
        {"cost": None},
        {"cost": []},
        {"cost": {"c0": "x"}},
        {"cost": {"c0": -1.0, "c_lin": 0, "c_att": 0, "c_dec": 0, "max_step_tokens": 1}},
        {"cost": {"c0": 1e300, "c_lin": 0, "c_att": 0, "c_dec": 0, "max_step_tokens": 1}},
        {"cost": {"c0": True, "c_lin": 0, "c_att": 0, "c_dec": 0, "max_step_tokens": 1}},
        {"cost": {"c0": 0, "c_lin": 0, "c_att": 0, "c_dec": 0, "max_step_tokens": 0}},
        {"load": {"pending_tokens": -1}},
        {"load": {"pending_tokens": 1.5}},
        {"load": "x"},
        {"seq": -1},
        {"beats": "1"},
        {"reuse_tokens": 0},
        {"canary_chat": None},
    ],
)
def test_a_field_of_the_wrong_shape_is_refused(changes: dict[str, object]) -> None:
    fields = orjson.loads(HEARTBEAT.encode())
    Heartbeat.decode(json.dumps(fields).encode())
    with pytest.raises(RecordError):
        Heartbeat.decode(json.dumps(fields | changes).encode())


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e999", b"-1", b"9" * 5000])
def test_odd_numbers_are_refused(number: bytes) -> None:
    with pytest.raises(RecordError):
        Heartbeat.decode(HEARTBEAT.encode().replace(b'"c_lin":0.001', b'"c_lin":' + number))


def test_another_version_s_heartbeat_is_read() -> None:
    fields = orjson.loads(HEARTBEAT.encode()) | {"a_later_field": {"x": [1]}}
    for name in ("template_fingerprint", "canary_plain", "canary_chat", "beats", "seq", "reuse_tokens"):
        del fields[name]
    fields["load"]["later_too"] = 5
    del fields["load"]["free_blocks"]
    assert Heartbeat.decode(orjson.dumps(fields)) == HEARTBEAT


def test_a_heartbeat_beyond_its_bound_is_refused() -> None:
    with pytest.raises(RecordError) as caught:
        Heartbeat.decode(HEARTBEAT.encode() + b" " * HEARTBEAT_MAX_BYTES)
    assert caught.value.reason == "size"


@pytest.mark.parametrize("digits", [b"+1", b" 1", b"1_0", "١".encode(), b"1.0", b"", b"9" * 21, b"-1"])
def test_whole_numbers_in_entries_are_digits_alone(digits: bytes) -> None:
    with pytest.raises(RecordError):
        decode_entry(as_redis_returns(DELTA.encode()) | {b"count": digits})


def test_an_entry_beyond_its_bound_is_refused() -> None:
    with pytest.raises(RecordError) as caught:
        decode_entry(as_redis_returns(DELTA.encode()) | {b"added": bytes(ENTRY_MAX_BYTES)})
    assert caught.value.reason == "size"


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_a_snapshot_says_its_own_length(count: int) -> None:
    data = Snapshot("e1", 4, "12-0", tuple(range(count))).encode()
    for value in (data, Signer.of(bytes(20)).seal("a", data)):
        check_snapshot_size(value[:SNAPSHOT_HEAD_MAX_BYTES], len(value))
        for size in (0, len(value) - 1, len(value) + 8, 10_000_000):
            with pytest.raises(RecordError) as caught:
                check_snapshot_size(value[:SNAPSHOT_HEAD_MAX_BYTES], size)
            assert caught.value.reason == "size"


def test_a_snapshot_that_says_it_is_huge_is_refused() -> None:
    data = Snapshot("e1", 4, "12-0", ()).encode().replace(b'"count":0', b'"count":%d' % (SNAPSHOT_MAX_BLOCKS + 1))
    with pytest.raises(RecordError):
        check_snapshot_size(data, len(data) + 8 * (SNAPSHOT_MAX_BLOCKS + 1))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
FIELDS = [field.name for field in dataclasses.fields(Heartbeat)]
SLOW_MACHINES = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAMES = st.sampled_from([name.encode() for name in DELTA.encode()]) | st.binary(max_size=5)


def record_or_error(decode: Callable[[], object]) -> None:
    with contextlib.suppress(RecordError):
        decode()


@SLOW_MACHINES
@given(st.binary(max_size=300))
def test_any_bytes_are_a_record_or_an_error(data: bytes) -> None:
    record_or_error(lambda: Heartbeat.decode(data))
    record_or_error(lambda: Snapshot.decode(*split_snapshot(data)))
    record_or_error(lambda: check_snapshot_size(data, len(data)))
    record_or_error(lambda: check_replica_id(data.decode(errors="replace")))
    record_or_error(lambda: Signer.of(bytes(20)).unseal("a", data))


@SLOW_MACHINES
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3))
def test_any_json_is_a_heartbeat_or_an_error(changes: dict[str, object]) -> None:
    data = json.dumps(orjson.loads(HEARTBEAT.encode()) | changes).encode(errors="surrogatepass")
    record_or_error(lambda: Heartbeat.decode(data))
    record_or_error(lambda: Snapshot.decode(data + b"\n", bytes(8)))


@SLOW_MACHINES
@given(st.dictionaries(NAMES, st.binary(max_size=40), max_size=3), st.booleans())
def test_any_entry_is_a_record_or_an_error(changes: dict[bytes, bytes], based_on_a_delta: bool) -> None:
    fields = (as_redis_returns(DELTA.encode()) if based_on_a_delta else {}) | changes
    record_or_error(lambda: decode_entry(fields))
    record_or_error(lambda: Signer.of(bytes(20)).check_entry("stream", fields))


def test_packing() -> None:
    hashes = (0, 1, 2**64 - 1)
    assert tuple(unpack_hashes(pack_hashes(hashes))) == hashes
    assert len(pack_hashes(hashes)) == 24
    assert xor_root([5, 9, 5]) == 9


def test_all_keys_of_a_fleet_share_a_hash_slot() -> None:
    keys = Keys("prod")
    names = [keys.stream, keys.replicas, keys.heartbeat("r"), keys.snapshot("r"), keys.snapshot_wanted("r")]
    assert all("{prod}" in name for name in names)
    assert len(set(names)) == len(names)


def test_prefill_cost_falls_with_cached_tokens_and_never_below_a_step() -> None:
    cost = CostModel(0.01, 0.001, 1e-6, 0.002, max_step_tokens=256)
    cold, warm = cost.prefill_s(1024, 0), cost.prefill_s(1024, 1008)
    assert cold == pytest.approx(4 * 0.01 + 1.024 + 1e-6 * 1024 * 512)
    assert warm == pytest.approx(0.01 + 0.016 + 1e-6 * 16 * 1016)
    assert replace(cost, c_lin=0, c_att=0).prefill_s(16, 15) == cost.c0
