"""What a replica publishes to Redis, and where.

Keys of a fleet share one hash slot. A stream carries every replica's deltas and state changes; a snapshot key per
replica holds all its block hashes as of a sequence number; a heartbeat key with a TTL holds address, state, load and
cost model; a set names all replicas that ever beat, so that gateways need no key scan. Gateways have a stream of their
own (intents.py).
"""

import re
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from dataclasses import fields as dataclass_fields
from enum import StrEnum
from functools import reduce
from operator import xor
from typing import Any

import orjson

from replica.protocol.hashing import BLOCK_SIZE
from replica.protocol.shape import (
    RecordError as RecordError,
)
from replica.protocol.shape import (
    as_object,
    entry_integer,
    entry_text,
    integer,
    json_object,
    seconds,
    text,
)
from replica.protocol.signing import SEAL_BYTES

HEARTBEAT_TTL_S = 2.0
HEARTBEAT_PERIOD_S = 0.5
STREAM_MAX_ENTRIES = 20_000

HEARTBEAT_MAX_BYTES = 64 << 10
"""One has about 1 KiB."""
ENTRY_MAX_BYTES = 1 << 20
"""Of all fields. A delta has at most 64 KiB of hashes (digest.py)."""
SNAPSHOT_MAX_BLOCKS = 8 << 20
"""64 MiB, or 134 million tokens: twenty times what an accelerator of 139 GiB holds of the default model's KV."""
SNAPSHOT_HEAD_MAX_BYTES = 1 << 10
REPLICAS_MAX = 10_000

SNAPSHOT_TTL_S = 60.0
"""Renewed by each heartbeat. A replica that Redis hasn't heard from for so long writes a new one when it is back."""
FLEET_TTL_S = 3600.0
"""Of the stream and the set of names, renewed by each heartbeat: an hour after the last replica nothing is left, nor of
the gateways' stream an hour after the last gateway."""

Hashes = Sequence[int] | bytes
"""Block hashes: as numbers (quickest in an `array("Q")`), or as bytes, packed as they are in Redis."""

StreamFields = dict[Any, Any]
"""Names and values of a stream entry; the redis client's own type for them is wider than ours and invariant."""

_REPLICA_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")
_EPOCH = re.compile(r"[A-Za-z0-9._\-]{1,64}")
_U64_MAX = 2**64 - 1


def check_replica_id(name: str) -> str:
    """Raises RecordError: names come from Redis, and end in keys, logs and metrics."""
    if not _REPLICA_ID.fullmatch(name):
        raise RecordError(f"replica id {name[:64]!r} is empty, too long or has odd characters", "id")
    return name


def _check_epoch(epoch: str) -> str:
    if not _EPOCH.fullmatch(epoch):
        raise RecordError(f"epoch {epoch!r} is empty or has odd characters")
    return epoch


@dataclass(frozen=True, slots=True)
class Keys:
    """The Redis keys of one fleet."""

    fleet: str = "default"

    @property
    def stream(self) -> str:
        return f"ryokan:{{{self.fleet}}}:stream"

    @property
    def intents(self) -> str:
        """The gateways' own stream."""
        return f"ryokan:{{{self.fleet}}}:intents"

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


def pack_hashes(hashes: Iterable[int] | bytes) -> bytes:
    """Block hashes as little-endian u64, 8 bytes each."""
    if isinstance(hashes, bytes):
        return hashes
    packed = array("Q", hashes)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_hashes(hashes: Hashes) -> Sequence[int]:
    """Raises RecordError."""
    if not isinstance(hashes, bytes):
        return hashes
    packed = array("Q", check_packed(hashes))
    if sys.byteorder == "big":
        packed.byteswap()
    return packed


def check_packed(data: bytes) -> bytes:
    """They stay packed up to the index: as numbers they would take the event loop's time. Raises RecordError."""
    if len(data) % 8:
        raise RecordError(f"packed hashes: {len(data)} bytes is no multiple of 8")
    return data


def xor_root(hashes: Iterable[int]) -> int:
    return reduce(xor, hashes, 0)


def count_and_root(hashes: Hashes) -> tuple[int, int]:
    numbers = unpack_hashes(hashes)
    return len(numbers), xor_root(numbers)


@dataclass(frozen=True, slots=True)
class Delta:
    """One step of a replica's cache: the index checks the state after it by `count` and `root`, the XOR of all hashes.

    `seq` counts a replica's deltas within an epoch, from 1. An epoch is random and new at each engine start and cache
    reset; delta 1 of an epoch starts from an empty cache.
    """

    replica: str
    epoch: str
    seq: int
    added: Hashes
    removed: Hashes
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
    size = sum(map(len, fields.values()))
    if size > ENTRY_MAX_BYTES:
        raise RecordError(f"stream entry of {size} bytes", "size")
    kind = fields.get(b"kind", b"")
    replica = check_replica_id(entry_text(fields, b"replica"))
    if kind == b"state":
        return StateChange(replica)
    if kind != b"delta":
        raise RecordError(f"stream entry of unknown kind {kind[:32]!r}")
    return Delta(
        replica=replica,
        epoch=_check_epoch(entry_text(fields, b"epoch")),
        seq=entry_integer(fields, b"seq"),
        added=check_packed(fields.get(b"added", b"?")),
        removed=check_packed(fields.get(b"removed", b"?")),
        count=entry_integer(fields, b"count"),
        root=entry_integer(fields, b"root", high=_U64_MAX),
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All block hashes that a replica holds as of `seq`; deltas after it lie behind `stream_id` in the stream."""

    epoch: str
    seq: int
    stream_id: str
    hashes: Hashes
    claimed: tuple[int, int] | None = None
    """Count and root, as the replica says; the index checks them."""

    def encode(self) -> bytes:
        count, root = self.claimed or count_and_root(self.hashes)
        head = {
            "epoch": self.epoch,
            "seq": self.seq,
            "stream_id": self.stream_id,
            "count": count,
            "root": str(root),
        }
        return orjson.dumps(head) + b"\n" + pack_hashes(self.hashes)

    @classmethod
    def decode(cls, head: bytes, packed: bytes) -> "Snapshot":
        """`head` as in `split_snapshot`, without a signature. Raises RecordError."""
        fields = json_object(head)
        return cls(
            epoch=_check_epoch(text(fields, "epoch")),
            seq=integer(fields, "seq"),
            stream_id=text(fields, "stream_id", 64),
            hashes=check_packed(packed),
            claimed=(integer(fields, "count"), _root(text(fields, "root", 20))),
        )


def _root(digits: str) -> int:
    """Raises RecordError. It is text in the JSON, since not every reader's numbers have 64 bits."""
    if not (digits.isascii() and digits.isdigit()) or (root := int(digits)) > _U64_MAX:
        raise RecordError(f"root is no whole number up to {_U64_MAX}")
    return root


def split_snapshot(value: bytes) -> tuple[bytes, bytes]:
    """The head, signed or not, with the end of its line; and the packed hashes."""
    sealed, head = _snapshot_head(value)
    at = min(len(value), sealed + len(head) + 1)
    return value[:at], value[at:]


def check_snapshot_size(start: bytes, size: int) -> None:
    """Whether a snapshot of `size` bytes that begins like this is as long as it says itself, before it is read.
    `start` has SNAPSHOT_HEAD_MAX_BYTES, or all there is; signed or not. Raises RecordError."""
    sealed, head = _snapshot_head(start)
    count = integer(json_object(head), "count", high=SNAPSHOT_MAX_BLOCKS)
    if size != sealed + len(head) + 1 + 8 * count:
        raise RecordError(f"snapshot: {size} bytes don't fit the {count} blocks that it names", "size")


def snapshot_position(start: bytes) -> tuple[int, str]:
    """Sequence number and stream id of a snapshot that begins like this; nothing of it is checked yet. Raises
    RecordError."""
    fields = json_object(_snapshot_head(start)[1])
    return integer(fields, "seq"), text(fields, "stream_id", 64)


def _snapshot_head(start: bytes) -> tuple[int, bytes]:
    """How long the signature before it is, and the head."""
    sealed = 0 if start.startswith(b"{") else SEAL_BYTES
    return sealed, start[sealed:].partition(b"\n")[0]


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

    @classmethod
    def decode(cls, fields: Mapping[str, Any]) -> "CostModel":
        """Raises RecordError."""
        c0, c_lin, c_att, c_dec = (seconds(fields, name) for name in ("c0", "c_lin", "c_att", "c_dec"))
        return cls(c0, c_lin, c_att, c_dec, integer(fields, "max_step_tokens", low=1))

    def step_s(self, tokens: int, attention: float, decoding: int) -> float:
        return self.c0 + self.c_lin * tokens + self.c_att * attention + self.c_dec * decoding

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

    @classmethod
    def decode(cls, fields: Mapping[str, Any]) -> "Load":
        """Raises RecordError."""
        return cls(**{item.name: integer(fields, item.name, default=0) for item in dataclass_fields(cls)})


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
    seq: int = 0
    """Deltas of `epoch` up to this one are in the stream: a reader that has read on and lacks one has lost it."""
    beats: int = 0
    """Counts up with every heartbeat: only a live replica's changes, whatever any clock says. A process counts from the
    milliseconds of its clock at its start, so that mostly an earlier process's are lower."""
    template_fingerprint: str = ""
    """Of the chat template."""
    order: str = ""
    """In which it prefills: `shortest`, `lpm` or `fcfs`; empty: unknown."""
    max_running: int = 0
    """Sequences that it computes at a time; 0: unknown."""
    load_age_s: float = 0.0
    """How old `load` was when this was sent."""
    canary_plain: str = ""
    """See canary.py."""
    canary_chat: str = ""
    reuse_tokens: int = BLOCK_SIZE
    """An adopted engine may reuse only whole blocks of its own, of so many tokens, whatever `block_size` it is told of
    in."""
    stalled_s: float = 0.0
    """For how long the engine has had work, and not moved, beyond what the step under way may take."""
    resumes: bool = False
    """It goes on with answers that another replica has begun; see resume.py."""

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, data: bytes) -> "Heartbeat":
        """Raises RecordError. Fields that another version may have, and we don't know, are passed over."""
        if len(data) > HEARTBEAT_MAX_BYTES:
            raise RecordError(f"heartbeat of {len(data)} bytes", "size")
        fields = json_object(data)
        try:
            state = ReplicaState(text(fields, "state"))
        except ValueError as error:
            raise RecordError(f"heartbeat: {error}") from error
        return cls(
            replica=check_replica_id(text(fields, "replica")),
            url=text(fields, "url", 512),
            state=state,
            model=text(fields, "model"),
            model_fingerprint=text(fields, "model_fingerprint"),
            tokenizer_fingerprint=text(fields, "tokenizer_fingerprint"),
            hash_version=integer(fields, "hash_version"),
            block_size=integer(fields, "block_size", low=1),
            max_context=integer(fields, "max_context", low=1),
            epoch=_check_epoch(text(fields, "epoch")),
            cost=CostModel.decode(as_object(fields.get("cost"), "cost")),
            load=Load.decode(as_object(fields.get("load"), "load")),
            template_fingerprint=text(fields, "template_fingerprint", default=""),
            order=text(fields, "order", default=""),
            max_running=integer(fields, "max_running", default=0),
            load_age_s=seconds(fields, "load_age_s") if "load_age_s" in fields else 0.0,
            canary_plain=text(fields, "canary_plain", default=""),
            canary_chat=text(fields, "canary_chat", default=""),
            seq=integer(fields, "seq", default=0),
            beats=integer(fields, "beats", default=0),
            reuse_tokens=integer(fields, "reuse_tokens", low=1, default=BLOCK_SIZE),
            stalled_s=seconds(fields, "stalled_s") if "stalled_s" in fields else 0.0,
            resumes=fields.get("resumes") is True,
        )
