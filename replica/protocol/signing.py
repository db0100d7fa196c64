"""Signatures of what replicas publish, so that whoever can write to Redis can't speak for a replica.

A signature is keyed BLAKE2b over where the record lies (the key's name, which holds fleet and replica, or the fleet's
stream) and what it says, so that it can't be moved to another replica or fleet. What it can't do is tell an old record
from a new one; gateway/records_gate.py says what is done about that.

Switching it on without a gap: give the key to the replicas first. A gateway without one takes signed records unchecked,
and a gateway with one takes no others.
"""

import hashlib
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replica.protocol.shape import RecordError

KEY_VARIABLE = "RYOKAN_FLEET_KEY"
SIGNATURE_BYTES = 16
SEAL_BYTES = 1 + SIGNATURE_BYTES
ENTRY_FIELD = b"sig"

_SEALED = b"\x01"
"""Begins a signed value. No JSON does."""
_MIN_SECRET_BYTES = 16
_PERSON = b"ryokan record v1"

Fields = dict[Any, Any]


class FleetKeyError(ValueError):
    """There is no usable key where one is said to be; the message doesn't hold it."""


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs and checks with the fleet's key; without one, passes everything on as it is."""

    key: bytes | None = field(default=None, repr=False)

    @classmethod
    def load(cls, file: Path | None, environment: Mapping[str, str] = os.environ) -> "Signer":
        """From the file, else from RYOKAN_FLEET_KEY, else without a key. Raises FleetKeyError."""
        if file is not None:
            try:
                secret = file.read_bytes().strip()
            except OSError as error:
                raise FleetKeyError(f"the fleet's key file {file}: {error.strerror}") from error
            return cls.of(secret, f"the fleet's key in {file}")
        secret = environment.get(KEY_VARIABLE, "").strip().encode()
        return cls.of(secret, f"the fleet's key in {KEY_VARIABLE}") if secret else cls()

    @classmethod
    def of(cls, secret: bytes, what: str = "the fleet's key") -> "Signer":
        if len(secret) < _MIN_SECRET_BYTES:
            raise FleetKeyError(f"{what} has less than {_MIN_SECRET_BYTES} characters")
        return cls(hashlib.blake2b(secret, digest_size=32, person=b"ryokan fleet key").digest())

    def seal(self, place: str, data: bytes) -> bytes:
        """A value for the key `place`."""
        return data if self.key is None else _SEALED + self._signature(self.key, place, data) + data

    def unseal(self, place: str, value: bytes, rest: bytes = b"") -> bytes:
        """What was sealed, but for its `rest`, if that was read apart. Raises RecordError."""
        sealed = value.startswith(_SEALED)
        data = value[SEAL_BYTES:] if sealed else value
        if self.key is not None:
            if not sealed:
                raise RecordError("it isn't signed", "signature")
            self._check(value[1:SEAL_BYTES], self._signature(self.key, place, data, rest))
        return data

    def sign_entry(self, stream: str, fields: Fields) -> Fields:
        """Fields of a stream entry, with their signature."""
        if self.key is None:
            return fields
        return fields | {ENTRY_FIELD.decode(): self._signature(self.key, stream, _canonical(fields))}

    def check_entry(self, stream: str, fields: Mapping[bytes, bytes]) -> None:
        """Raises RecordError."""
        if self.key is None:
            return
        signature = fields.get(ENTRY_FIELD)
        if signature is None:
            raise RecordError("it isn't signed", "signature")
        unsigned = {name: value for name, value in fields.items() if name != ENTRY_FIELD}
        self._check(signature, self._signature(self.key, stream, _canonical(unsigned)))

    @staticmethod
    def _check(signature: bytes, right: bytes) -> None:
        if not hmac.compare_digest(signature, right):
            raise RecordError("its signature is wrong", "signature")

    @staticmethod
    def _signature(key: bytes, place: str, *data: bytes) -> bytes:
        mac = hashlib.blake2b(key=key, digest_size=SIGNATURE_BYTES, person=_PERSON)
        where = place.encode()
        mac.update(len(where).to_bytes(4, "little"))
        mac.update(where)
        for part in data:
            mac.update(part)
        return mac.digest()


def _canonical(fields: Mapping[Any, Any]) -> bytes:
    """Every name and value with its length, as Redis gives them back, in the order of the names."""
    parts = sorted((_as_stored(name), _as_stored(value)) for name, value in fields.items())
    return b"".join(len(part).to_bytes(4, "little") + part for pair in parts for part in pair)


def _as_stored(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
