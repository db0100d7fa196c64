"""What a replica publishes to Redis, and where.

Keys of a fleet share one hash slot. A stream carries every replica's deltas and state changes; a snapshot key per
replica holds all its block hashes as of a sequence number; a heartbeat key with a TTL holds address, state, load and
cost model; a set names all replicas that ever beat, so that gateways need no key scan.
"""

import sys
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import reduce
from operator import xor
from typing import Any

import orjson

HEARTBEAT_TTL_S = 2.0
HEARTBEAT_PERIOD_S = 0.5
STREAM_MAX_ENTRIES = 20_000

StreamFields = dict[Any, Any]
"""Names and values of a stream entry; the redis client's own type for them is wider than ours and invariant."""


class RecordError(ValueError):
    """A record in Redis doesn't have the shape described here."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The Redis keys of one fleet."""

    fleet: str = "default"

    @property
    def stream(self) -> str:
        return f"ryokan:{{{self.fleet}}}:stream"

    @property
    def replicas(self) -> str:
        return f"ryokan:{{{self.fleet}}}:replicas"

    def heartbeat(self, replica: str) -> str:
        return f"ryokan:{{{self.fleet}}}:heartbeat:{replica}"

    def snapshot(self, replica: str) -> str:
        return f"ryokan:{{{self.fleet}}}:snapshot:{replica}"

    def snapshot_wanted(self, replica: str) -> str:
        """Set by a reader that can't repair its view from what is there; the replica deletes it and writes anew."""
        return f"ryokan:{{{self.fleet}}}:wanted:{replica}"


class ReplicaState(StrEnum):
    READY = "ready"
    DRAINING = "draining"


def pack_hashes(hashes: Iterable[int]) -> bytes:
    """Block hashes as little-endian u64, 8 bytes each."""
    packed = array("Q", hashes)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_hashes(data: bytes) -> list[int]:
    if len(data) % 8:
        raise RecordError(f"packed hashes: {len(data)} bytes is no multiple of 8")
    packed = array("Q", data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


def xor_root(hashes: Iterable[int]) -> int:
    return reduce(xor, hashes, 0)


@dataclass(frozen=True, slots=True)
class Delta:
    """One step of a replica's cache: the state after it is checked by `count` and `root` (XOR of all hashes held).

    `seq` counts a replica's deltas within an epoch, from 1. An epoch is random and new at each engine start and cache
    reset; delta 1 of an epoch starts from an empty cache.
    """

    replica: str
    epoch: str
    seq: int
    added: tuple[int, ...]
    removed: tuple[int, ...]
    count: int
    root: int

    def encode(self) -> StreamFields:
        """Fields of a stream entry."""
        return {
            "kind": "delta",
            "replica": self.replica,
            "epoch": self.epoch,
            "seq": self.seq,
            "added": pack_hashes(self.added),
            "removed": pack_hashes(self.removed),
            "count": self.count,
            "root": self.root,
        }


@dataclass(frozen=True, slots=True)
class StateChange:
    """A replica has come, is draining or has gone: read its heartbeat now rather than at the next poll."""

    replica: str

    def encode(self) -> StreamFields:
        return {"kind": "state", "replica": self.replica}


def decode_entry(fields: Mapping[bytes, bytes]) -> Delta | StateChange:
    """A stream entry, as read with undecoded responses. Raises RecordError."""
    try:
        kind = fields[b"kind"]
        replica = fields[b"replica"].decode()
        if kind == b"state":
            return StateChange(replica)
        if kind != b"delta":
            raise RecordError(f"stream entry of unknown kind {kind!r}")
        return Delta(
            replica=replica,
            epoch=fields[b"epoch"].decode(),
            seq=int(fields[b"seq"]),
            added=tuple(unpack_hashes(fields[b"added"])),
            removed=tuple(unpack_hashes(fields[b"removed"])),
            count=int(fields[b"count"]),
            root=int(fields[b"root"]),
        )
    except KeyError as error:
        raise RecordError(f"stream entry lacks the field {error}") from error
    except ValueError as error:
        raise RecordError(f"stream entry: {error}") from error


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All block hashes that a replica holds as of `seq`; deltas after it lie behind `stream_id` in the stream."""

    epoch: str
    seq: int
    stream_id: str
    hashes: tuple[int, ...]

    @property
    def root(self) -> int:
        return xor_root(self.hashes)

    def encode(self) -> bytes:
        head = {"epoch": self.epoch, "seq": self.seq, "stream_id": self.stream_id, "root": str(self.root)}
        return orjson.dumps(head) + b"\n" + pack_hashes(self.hashes)

    @classmethod
    def decode(cls, data: bytes) -> "Snapshot":
        """Raises RecordError, also where the hashes don't give the root that was written with them."""
        head, _, packed = data.partition(b"\n")
        try:
            fields = orjson.loads(head)
            snapshot = cls(
                epoch=str(fields["epoch"]),
                seq=int(fields["seq"]),
                stream_id=str(fields["stream_id"]),
                hashes=tuple(unpack_hashes(packed)),
            )
            root = int(fields["root"])
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"snapshot: {error}") from error
        if snapshot.root != root:
            raise RecordError("snapshot: the hashes don't give its root")
        return snapshot


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of one engine step, as the replica fits them from its own steps.

    step = c0 + c_lin · (prompt tokens computed) + c_att · Σ u·(n - u/2) + c_dec · (decoding sequences), where a prefill
    chunk of u tokens brings its sequence to n tokens.
    """

    c0: float
    c_lin: float
    c_att: float
    c_dec: float
    max_step_tokens: int

    def prefill_s(self, tokens: int, cached: float) -> float:
        """Seconds to prefill a prompt of `tokens`, of which `cached` are in the cache, alone on an idle replica."""
        uncached = tokens - cached
        steps = max(1.0, uncached / self.max_step_tokens)
        return steps * self.c0 + self.c_lin * uncached + self.c_att * uncached * (tokens - uncached / 2)


@dataclass(frozen=True, slots=True)
class Load:
    """What a replica has to do and how full it is, at the time of a heartbeat."""

    waiting: int = 0
    running: int = 0
    decoding: int = 0
    pending_tokens: int = 0
    """Prompt tokens, not in the cache, that requests accepted so far still need computed."""
    free_blocks: int = 0
    evictable_blocks: int = 0
    total_blocks: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    replica: str
    url: str
    state: ReplicaState
    model: str
    """The name clients use for it."""
    model_fingerprint: str
    tokenizer_fingerprint: str
    hash_version: int
    block_size: int
    max_context: int
    """Tokens of prompt and answer together."""
    epoch: str
    cost: CostModel
    load: Load = field(default_factory=Load)

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, data: bytes) -> "Heartbeat":
        """Raises RecordError."""
        try:
            fields: dict[str, Any] = orjson.loads(data)
            return cls(
                **(
                    fields
                    | {
                        "state": ReplicaState(fields["state"]),
                        "cost": CostModel(**fields["cost"]),
                        "load": Load(**fields["load"]),
                    }
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"heartbeat: {error}") from error
