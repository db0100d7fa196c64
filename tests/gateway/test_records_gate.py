from dataclasses import replace

import pytest

from gateway.addresses import DEFAULT_NETWORKS, AddressList
from gateway.records_gate import RecordsGate
from replica.protocol.records import Heartbeat, Keys, Snapshot, split_snapshot
from replica.protocol.shape import RecordError
from replica.protocol.signing import Signer
from tests.gateway.fakes import heartbeat

KEYS = Keys()
SIGNER = Signer.of(b"a secret of the whole fleet")


def gate(signer: Signer = SIGNER) -> RecordsGate:
    return RecordsGate(KEYS, signer, AddressList(DEFAULT_NETWORKS))


def sealed(beat: Heartbeat, key: str | None = None) -> bytes:
    return SIGNER.seal(key or KEYS.heartbeat(beat.replica), beat.encode())


def reason(check: RecordsGate, name: str, value: bytes) -> str:
    try:
        check.heartbeat(name, value)
    except RecordError as error:
        return error.reason
    return ""


def test_a_signed_heartbeat_passes_and_no_other() -> None:
    beat = heartbeat("r1")
    assert gate().heartbeat("r1", sealed(beat)) == beat
    assert reason(gate(), "r1", beat.encode()) == "signature"
    assert reason(gate(), "r1", sealed(beat, KEYS.heartbeat("r2"))) == "signature"
    assert reason(gate(), "r1", sealed(beat, KEYS.snapshot("r1"))) == "signature"
    assert reason(gate(), "r1", sealed(beat, Keys("other").heartbeat("r1"))) == "signature"
    assert gate(Signer()).heartbeat("r1", beat.encode()) == beat


def test_what_is_signed_may_still_be_refused() -> None:
    assert reason(gate(), "r1", sealed(heartbeat("r2"), KEYS.heartbeat("r1"))) == "id"
    assert reason(gate(), "r1", sealed(heartbeat("r1", url="http://169.254.169.254"))) == "address"
    assert reason(gate(), "r1", sealed(heartbeat("r1", model="m" * 100_000))) == "size"
    assert reason(gate(), "r 1", sealed(heartbeat("r 1"))) == "id"
    assert reason(gate(), "r1", SIGNER.seal(KEYS.heartbeat("r1"), b"[]")) == "shape"


def test_an_older_heartbeat_of_the_epoch_is_refused() -> None:
    check = gate()
    first, second = sealed(heartbeat("r1", beats=5)), sealed(heartbeat("r1", beats=6))
    assert [reason(check, "r1", value) for value in (first, first, second, second, first, second)] == [
        *("", "", "", ""),
        "replay",
        "",
    ]


def test_an_epoch_that_is_over_does_not_come_back() -> None:
    check = gate()
    old, new = heartbeat("r1", epoch="e1", beats=100), heartbeat("r1", epoch="e2", beats=200)
    assert reason(check, "r1", sealed(old)) == ""
    assert reason(check, "r1", sealed(new)) == ""
    assert reason(check, "r1", sealed(old)) == "replay"
    assert reason(check, "r1", sealed(new)) == ""


def test_a_gateway_that_saw_the_live_replica_first_comes_back_to_it_after_a_replay() -> None:
    check = gate()
    live, old = heartbeat("r1", epoch="e2", beats=200), heartbeat("r1", epoch="e1", beats=100)
    assert reason(check, "r1", sealed(live)) == ""
    # Nobody here can know that this one isn't new.
    assert reason(check, "r1", sealed(old)) == ""
    assert reason(check, "r1", sealed(replace(live, beats=201))) == ""
    assert reason(check, "r1", sealed(old)) == "replay"


def test_a_clock_set_back_does_not_keep_a_restarted_replica_out() -> None:
    check = gate()
    assert reason(check, "r1", sealed(heartbeat("r1", epoch="e1", beats=3_600_000))) == ""
    for beats in range(1, 10):
        assert reason(check, "r1", sealed(heartbeat("r1", epoch="e2", beats=beats))) == ""


def test_who_goes_on_beating_is_believed_in_the_end() -> None:
    """A failover brings back the heartbeat of the process before, and the clock was set back between the two."""
    check = gate()
    old = heartbeat("r1", epoch="e1", beats=3_600_000)
    assert reason(check, "r1", sealed(heartbeat("r1", epoch="e2", beats=1))) == ""
    assert reason(check, "r1", sealed(old)) == ""
    found = [reason(check, "r1", sealed(heartbeat("r1", epoch="e2", beats=beats))) for beats in (2, 2, 3, 4, 5)]
    assert found == ["replay", "replay", "replay", "", ""]
    assert reason(check, "r1", sealed(heartbeat("r1", epoch="e2", beats=6))) == ""


def test_snapshots() -> None:
    snapshot = Snapshot("e1", 3, "1-0", tuple(range(200)))
    value = SIGNER.seal(KEYS.snapshot("r1"), snapshot.encode())
    found = gate().snapshot("r1", *split_snapshot(value))
    assert found.encode() == snapshot.encode()
    moved = SIGNER.seal(KEYS.snapshot("r2"), snapshot.encode())
    for bad, expected in [
        (snapshot.encode(), "signature"),
        (moved, "signature"),
        (value[:-1] + b"x", "signature"),
        (value[:-1], "size"),
        (value[:1024], "size"),
        (value + bytes(8), "size"),
        (b"x" * 2000, "shape"),
    ]:
        with pytest.raises(RecordError) as caught:
            gate().snapshot("r1", *split_snapshot(bad))
        assert caught.value.reason == expected
