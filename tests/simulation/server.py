"""Redis as far as the fleet uses it, with a clock of its own and every fault we could think of."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

Id = tuple[int, int]

OOM_DENIES = {"set", "xadd", "sadd"}
WRITES = OOM_DENIES | {"delete", "srem", "pexpire"}

OTHER_TYPE = b"(another type)"
"""A value under a stream's key."""


@dataclass
class Stream:
    entries: list[tuple[Id, dict[bytes, bytes]]] = field(default_factory=list)
    last: Id = (0, 0)
    added: int = 0

    def copy(self) -> "Stream":
        return Stream(list(self.entries), self.last, self.added)


@dataclass
class Mischief:
    """Chances, for each entry that is added."""

    drop: float = 0.0
    repeat: float = 0.0
    reorder: float = 0.0


class Server:
    """One keyspace. Commands are plain synchronous methods, named as in the client library."""

    def __init__(self, time: Callable[[], float], rng: Random, stream_max: int) -> None:
        self._time = time
        self._rng = rng
        self.stream_max = stream_max
        self.offset_s = 1_700_000_000.0
        self.values: dict[str, Any] = {}
        self.expires: dict[str, float] = {}
        self.oom = self.read_only = False
        self.mischief = Mischief()
        self.corrupt = 0.0
        """Chance, for each record with hashes, that it is stored with a wrong byte in them."""
        self.calls: dict[str, int] = {}
        self.blocked: list[asyncio.Future[None]] = []

    def clock(self) -> float:
        return self.offset_s + self._time()

    def copy(self) -> "Server":
        copy = Server(self._time, self._rng, self.stream_max)
        copy.offset_s, copy.expires, copy.calls = self.offset_s, dict(self.expires), self.calls
        copy.values = {k: v if isinstance(v, bytes) else v.copy() for k, v in self.values.items()}
        return copy

    def execute(self, name: str, *args: Any) -> Any:
        if self.read_only and name in WRITES:
            raise ReadOnlyError("You can't write against a read only replica.")
        if self.oom and name in OOM_DENIES:
            raise OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")
        key = f"{name} {args[0].split(':')[2]}" if args else name
        self.calls[key] = self.calls.get(key, 0) + 1
        return getattr(self, name)(*args)

    def _get(self, key: str) -> Any:
        if key in self.expires and self.expires[key] <= self.clock():
            del self.expires[key], self.values[key]
        return self.values.get(key)

    def wipe(self, *keys: str) -> None:
        for key in keys or list(self.values):
            self.values.pop(key, None)
            self.expires.pop(key, None)

    def set(self, key: str, value: bytes, ttl_s: float | None) -> bool:
        self.values[key] = self._spoilt(value, value.find(b"\n") + 1) if ":snapshot:" in key else value
        self.expires.pop(key, None)
        if ttl_s is not None:
            self.expires[key] = self.clock() + ttl_s
        return True

    def get(self, key: str) -> bytes | None:
        value = self._get(key)
        assert value is None or isinstance(value, bytes)
        return value

    def getrange(self, key: str, start: int, end: int) -> bytes:
        return (self.get(key) or b"")[start : end + 1]

    def exists(self, key: str) -> int:
        return int(self._get(key) is not None)

    def pttl(self, key: str) -> int:
        if self._get(key) is None:
            return -2
        return round((self.expires[key] - self.clock()) * 1000) if key in self.expires else -1

    def pexpire(self, key: str, milliseconds: int) -> int:
        if self._get(key) is None:
            return 0
        self.expires[key] = self.clock() + milliseconds / 1000
        return 1

    def strlen(self, key: str) -> int:
        return len(self.get(key) or b"")

    def delete(self, *keys: str) -> int:
        found = sum(self.exists(key) for key in keys)
        self.wipe(*keys)
        return found

    def sadd(self, key: str, member: str) -> int:
        members = self.values.setdefault(key, set())
        members.add(member.encode())
        return 1

    def srem(self, key: str, *members: str | bytes) -> int:
        held = self._get(key) or set()
        held.difference_update(map(_bytes, members))
        if not held:
            self.wipe(key)
        return 1

    def srandmember(self, key: str, most: int) -> list[bytes]:
        held = sorted(self._get(key) or ())
        return held if len(held) <= most else self._rng.sample(held, most)

    def _stream(self, key: str) -> Stream | None:
        stream = self._get(key)
        if isinstance(stream, bytes):
            raise ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")
        assert stream is None or isinstance(stream, Stream)
        return stream

    def xadd(self, key: str, fields: dict[Any, Any], maxlen: int) -> bytes:
        stream = self._stream(key)
        if stream is None:
            stream = self.values[key] = Stream()
        stored = {_bytes(name): _bytes(value) for name, value in fields.items()}
        for name in (b"added", b"removed"):
            if name in stored:
                stored[name] = self._spoilt(stored[name], 0)
        entry_id = self._append(stream, stored)
        rng, mischief = self._rng, self.mischief
        if mischief.drop and rng.random() < mischief.drop:
            stream.entries.pop()
        if mischief.repeat and stream.entries and rng.random() < mischief.repeat:
            self._append(stream, rng.choice(stream.entries[-20:])[1])
        if len(stream.entries) > 1 and rng.random() < mischief.reorder:
            (id1, one), (id2, two) = stream.entries[-2:]
            stream.entries[-2:] = [(id1, two), (id2, one)]
        most = min(maxlen, self.stream_max)
        if len(stream.entries) > most + most // 4:
            del stream.entries[:-most]
        self.wake()
        return _text(entry_id)

    def _spoilt(self, value: bytes, start: int) -> bytes:
        """With a wrong byte from there on, perhaps."""
        if not self.corrupt or start == len(value) or self._rng.random() >= self.corrupt:
            return value
        at = self._rng.randrange(start, len(value))
        return value[:at] + bytes([value[at] ^ self._rng.randrange(1, 256)]) + value[at + 1 :]

    def _append(self, stream: Stream, fields: dict[bytes, bytes]) -> Id:
        now = (int(self.clock() * 1000), 0)
        stream.last = now if now > stream.last else (stream.last[0], stream.last[1] + 1)
        stream.added += 1
        stream.entries.append((stream.last, fields))
        return stream.last

    def wake(self) -> None:
        for waiter in self.blocked:
            if not waiter.done():
                waiter.set_result(None)
        self.blocked.clear()

    def trim(self, key: str, most: int) -> None:
        stream = self.values.get(key)
        if isinstance(stream, Stream):
            del stream.entries[: max(0, len(stream.entries) - most)]

    def after(self, key: str, after: Id, count: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        stream = self._stream(key)
        if stream is None:
            return []
        found: list[tuple[bytes, dict[bytes, bytes]]] = []
        for entry_id, fields in reversed(stream.entries):
            if entry_id <= after:
                break
            found.append((_text(entry_id), fields))
        return found[::-1][:count]

    def xinfo_stream(self, key: str) -> dict[str, Any]:
        stream = self._stream(key)
        if stream is None:
            raise ResponseError("no such key")
        first = stream.entries[0] if stream.entries else None
        return {
            "last-generated-id": _text(stream.last),
            "first-entry": (_text(first[0]), first[1]) if first else None,
            "entries-added": stream.added,
            "length": len(stream.entries),
        }


def parse_id(text: str) -> Id:
    milliseconds, _, number = text.partition("-")
    return int(milliseconds), int(number)


def _text(value: Id) -> bytes:
    return b"%d-%d" % value


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
