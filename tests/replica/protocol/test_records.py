from dataclasses import replace

import pytest

from replica.protocol.records import (
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
    decode_entry,
    pack_hashes,
    unpack_hashes,
    xor_root,
)

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


def test_entries_come_back_as_they_went() -> None:
    assert decode_entry(as_redis_returns(DELTA.encode())) == DELTA
    assert decode_entry(as_redis_returns(StateChange("r1").encode())) == StateChange("r1")


def test_heartbeat_and_snapshot_come_back_as_they_went() -> None:
    assert Heartbeat.decode(HEARTBEAT.encode()) == HEARTBEAT
    snapshot = Snapshot("e1", 4, "12-0", (3, 5, 2**63))
    assert Snapshot.decode(snapshot.encode()) == snapshot


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


def test_a_snapshot_that_lost_a_hash_is_refused() -> None:
    data = Snapshot("e1", 4, "12-0", (3, 5)).encode()
    with pytest.raises(RecordError, match="root"):
        Snapshot.decode(data[:-8])


def test_packing() -> None:
    hashes = [0, 1, 2**64 - 1]
    assert unpack_hashes(pack_hashes(hashes)) == hashes
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
