from pathlib import Path

import pytest

from replica.protocol.records import Delta, Keys, StateChange, decode_entry
from replica.protocol.shape import RecordError
from replica.protocol.signing import SEAL_BYTES, FleetKeyError, Signer
from tests.replica.protocol.test_records import DELTA, as_redis_returns

STREAM = Keys().stream
SIGNER = Signer.of(b"a secret of the whole fleet")
OTHER = Signer.of(b"the secret of another fleet")
PLAIN = Signer()


def test_what_was_sealed_comes_back() -> None:
    for data in (b"", b"{}", bytes(range(256))):
        value = SIGNER.seal("a", data)
        assert len(value) == SEAL_BYTES + len(data)
        assert SIGNER.unseal("a", value) == data
        assert SIGNER.unseal("a", value[:SEAL_BYTES], data) == b""
        assert PLAIN.unseal("a", PLAIN.seal("a", b"{}")) == b"{}"


def test_what_was_read_apart_is_signed_too() -> None:
    value = SIGNER.seal("a", b"head\nbody")
    assert SIGNER.unseal("a", value[:-4], b"body") == b"head\n"
    with pytest.raises(RecordError):
        SIGNER.unseal("a", value[:-4], b"bodY")


def test_a_reader_without_the_key_takes_signed_records_as_well() -> None:
    assert PLAIN.unseal("a", SIGNER.seal("a", b"{}")) == b"{}"
    signed = as_redis_returns(SIGNER.sign_entry(STREAM, DELTA.encode()))
    PLAIN.check_entry(STREAM, signed)
    assert as_redis_returns(decode_entry(signed).encode()) == as_redis_returns(DELTA.encode())


@pytest.mark.parametrize(
    "value",
    [b"{}", b"", PLAIN.seal("a", b"{}"), OTHER.seal("a", b"{}"), SIGNER.seal("b", b"{}"), SIGNER.seal("a", b"{}")[:-1]],
)
def test_what_is_unsigned_wrongly_signed_moved_or_cut_is_refused(value: bytes) -> None:
    with pytest.raises(RecordError) as caught:
        SIGNER.unseal("a", value)
    assert caught.value.reason == "signature"


def test_a_flipped_bit_is_refused() -> None:
    value = SIGNER.seal("a", b'{"url": "http://10.0.0.1"}')
    for number in range(8 * len(value)):
        flipped = bytearray(value)
        flipped[number // 8] ^= 1 << number % 8
        with pytest.raises(RecordError):
            SIGNER.unseal("a", bytes(flipped))


@pytest.mark.parametrize("entry", [DELTA.encode(), StateChange("r0").encode()])
def test_a_signed_entry_passes_as_redis_gives_it_back(entry: dict[str, object]) -> None:
    stored = as_redis_returns(SIGNER.sign_entry(STREAM, entry))
    SIGNER.check_entry(STREAM, stored)
    SIGNER.check_entry(STREAM, dict(reversed(stored.items())))


def test_a_changed_entry_is_refused() -> None:
    stored = as_redis_returns(SIGNER.sign_entry(STREAM, DELTA.encode()))
    unsigned = as_redis_returns(DELTA.encode())
    changed = [stored | {name: stored[name] + b"0"} for name in stored]
    changed += [stored | {b"more": b""}, {name: stored[name] for name in stored if name != b"root"}, unsigned]
    # Fields that are one when written one after another.
    changed += [stored | {b"epoch": b"", b"epoche1": b""}]
    for fields in changed:
        with pytest.raises(RecordError) as caught:
            SIGNER.check_entry(STREAM, fields)
        assert caught.value.reason == "signature"
    with pytest.raises(RecordError):
        SIGNER.check_entry(Keys("other").stream, stored)


def test_a_delta_signed_for_one_replica_is_not_another_s() -> None:
    stored = as_redis_returns(SIGNER.sign_entry(STREAM, DELTA.encode())) | {b"replica": b"r1"}
    with pytest.raises(RecordError):
        SIGNER.check_entry(STREAM, stored)
    assert isinstance(decode_entry(stored), Delta)


def test_the_key_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("a secret of the whole fleet\n")
    assert Signer.load(file, {}) == SIGNER
    assert Signer.load(file, {"RYOKAN_FLEET_KEY": "the secret of another fleet"}) == SIGNER
    assert Signer.load(None, {"RYOKAN_FLEET_KEY": " a secret of the whole fleet "}) == SIGNER
    assert Signer.load(None, {}) == PLAIN
    assert Signer.load(None, {"RYOKAN_FLEET_KEY": ""}) == PLAIN


def test_a_key_that_is_missing_or_short_is_one_clear_error(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("geheim\n")
    for file, environment in ((tmp_path / "none", {}), (short, {}), (None, {"RYOKAN_FLEET_KEY": "geheim"})):
        with pytest.raises(FleetKeyError, match="fleet's key") as caught:
            Signer.load(file, environment)
        assert "geheim" not in str(caught.value)


def test_the_key_is_not_shown() -> None:
    assert SIGNER.key is not None
    assert repr(SIGNER.key) not in repr(SIGNER)
