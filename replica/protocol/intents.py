"""What gateways tell each other through a stream of their own: which requests they have just sent where, and which of
them have got their first token or come to nothing.

An entry holds all of some milliseconds of one gateway: names of replicas once, rows of numbers as JSON, and the hashes
of all prompts' new blocks behind each other. The stream is short: nobody needs an old one.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from replica.protocol.records import StreamFields, check_replica_id, pack_hashes, unpack_hashes
from replica.protocol.shape import INTEGER_MAX, RecordError, entry_text

KIND = "intents"
STREAM_MAX_ENTRIES = 2000
"""A second of all that gateways may write (gateway/intents/outbox.py)."""
ENTRY_MAX_INTENTS = 32
ENTRY_MAX_DONE = 64
"""To hear so much takes 1 ms, in which the event loop has no time for anything else."""
ENTRY_MAX_HASHES = 2048
"""16 KiB: a quarter of what a delta may have."""
BODY_MAX_BYTES = 16 << 10
TOKENS_MAX = 1 << 24
AGE_MAX_S = 10.0
"""None is sent that is nearly as old."""

_GATEWAY = re.compile(r"[A-Za-z0-9._\-]{1,64}")


@dataclass(frozen=True, slots=True)
class Intent:
    """A request that was sent to a replica."""

    number: int
    """Counts the gateway's requests up."""
    replica: str
    tokens: int
    """Of the prompt, expected not to be in its cache."""
    age_s: float
    """When the entry was written."""
    hashes: Sequence[int] = ()
    """The first blocks that the replica will have for it and doesn't have yet: none, some or all of them."""


@dataclass(frozen=True, slots=True)
class Done:
    """A request of which nothing is left to prefill."""

    number: int
    replica: str
    age_s: float


@dataclass(frozen=True, slots=True)
class Intents:
    """One entry; one without rows says that the gateway is there."""

    gateway: str
    routed: tuple[Intent, ...] = ()
    done: tuple[Done, ...] = ()

    def encode(self) -> StreamFields:
        """Fields of a stream entry."""
        names = sorted({intent.replica for intent in self.routed} | {done.replica for done in self.done})
        places = {replica: place for place, replica in enumerate(names)}
        body = {
            "replicas": names,
            "routed": [[i.number, places[i.replica], i.tokens, _ms(i.age_s), len(i.hashes)] for i in self.routed],
            "done": [[d.number, places[d.replica], _ms(d.age_s)] for d in self.done],
        }
        hashes = [block for intent in self.routed for block in intent.hashes]
        return {
            "kind": KIND,
            "gateway": self.gateway,
            "body": orjson.dumps(body),
            "hashes": pack_hashes(hashes),
        }

    @classmethod
    def decode(cls, fields: Mapping[bytes, bytes]) -> "Intents":
        """A stream entry. Raises RecordError."""
        if fields.get(b"kind") != KIND.encode():
            raise RecordError("no intents")
        gateway = entry_text(fields, b"gateway", 64)
        if not _GATEWAY.fullmatch(gateway):
            raise RecordError(f"gateway id {gateway!r} is empty or has odd characters", "id")
        body, packed = fields.get(b"body", b""), fields.get(b"hashes", b"?")
        if len(body) > BODY_MAX_BYTES or len(packed) > 8 * ENTRY_MAX_HASHES:
            raise RecordError(f"intents of {len(body)} and {len(packed)} bytes", "size")
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise RecordError("intents: no JSON") from error
        if not isinstance(value, dict) or not isinstance(value.get("replicas"), list):
            raise RecordError("intents: no object with replicas")
        names = [check_replica_id(name if isinstance(name, str) else "") for name in value["replicas"]]
        place, age = len(names) - 1, round(AGE_MAX_S * 1000)
        routed = _rows(value, "routed", ENTRY_MAX_INTENTS, (INTEGER_MAX, place, TOKENS_MAX, age, ENTRY_MAX_HASHES))
        done = _rows(value, "done", ENTRY_MAX_DONE, (INTEGER_MAX, place, age))
        shares = _shares(unpack_hashes(packed), [row[4] for row in routed])
        return cls(
            gateway,
            tuple(Intent(row[0], names[row[1]], row[2], row[3] / 1000, next(shares)) for row in routed),
            tuple(Done(row[0], names[row[1]], row[2] / 1000) for row in done),
        )


def _ms(seconds: float) -> int:
    return round(min(AGE_MAX_S, max(0.0, seconds)) * 1000)


def _rows(body: Mapping[str, Any], name: str, most: int, highs: tuple[int, ...]) -> list[list[int]]:
    rows = body.get(name)
    if not isinstance(rows, list):
        raise RecordError(f"intents: {name} is no list")
    if len(rows) > most:
        raise RecordError(f"intents: {len(rows)} rows in {name}", "size")
    for row in rows:
        # NOTE: to Python, true is 1.
        if (
            not isinstance(row, list)
            or len(row) != len(highs)
            or not all(type(number) is int and 0 <= number <= high for number, high in zip(row, highs, strict=True))
        ):
            raise RecordError(f"intents: a row of {name} isn't {len(highs)} whole numbers within their bounds")
    return rows


def _shares(hashes: Sequence[int], lengths: list[int]) -> Iterator[Sequence[int]]:
    if sum(lengths) != len(hashes):
        raise RecordError("intents: the hashes aren't as many as its rows say")

    def cut() -> Iterator[Sequence[int]]:
        start = 0
        for length in lengths:
            yield hashes[start : start + length]
            start += length

    return cut()
