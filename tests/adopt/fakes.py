"""An engine as the adapter sees it: its cache's events over real ZMQ sockets, in every dialect of the wire."""

import hashlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

from adopt.events import Key

Path = tuple[int, ...]
"""Token ids from a prompt's beginning to a block's end."""

END_SEQ = (-1).to_bytes(8, "big", signed=True)


def name_bytes(path: Path) -> Key:
    """As vLLM names blocks."""
    return hashlib.sha256(repr(path).encode()).digest()


def name_unsigned(path: Path) -> Key:
    """vLLM with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES."""
    return int.from_bytes(hashlib.sha256(repr(path).encode()).digest()[-8:], "big")


def name_signed(path: Path) -> Key:
    """As SGLang names pages."""
    return int.from_bytes(hashlib.sha256(repr(path).encode()).digest()[:8], "big", signed=True)


@dataclass
class Wire:
    """How an engine writes its events."""

    name: Callable[[Path], Key] = name_bytes
    arrays: bool = False
    """As vLLM before June 2026 and older SGLangs."""
    topic_in_replay: bool = True
    """SGLang leaves it out."""

    def stored(self, path: Path, size: int, count: int = 1, **fields: Any) -> Any:
        """The last `count` blocks of this path."""
        start = len(path) - count * size
        names = [self.name(path[: start + (index + 1) * size]) for index in range(count)]
        parent = self.name(path[:start]) if start else None
        if self.arrays:
            return ["BlockStored", names, parent, list(path[start:]), size, None, *fields.values()]
        event = {"type": "BlockStored", "block_hashes": names, "parent_block_hash": parent}
        event |= {"token_ids": list(path[start:]), "block_size": size, "lora_id": None, "medium": "GPU"}
        return event | fields

    def removed(self, *paths: Path, **fields: Any) -> Any:
        names = [self.name(path) for path in paths]
        return ["BlockRemoved", names] if self.arrays else {"type": "BlockRemoved", "block_hashes": names} | fields

    def cleared(self) -> Any:
        return ["AllBlocksCleared"] if self.arrays else {"type": "AllBlocksCleared"}


WIRES = {
    "vllm": Wire(),
    "vllm-int": Wire(name_unsigned),
    "vllm-arrays": Wire(arrays=True),
    "sglang": Wire(name_signed, topic_in_replay=False),
    "sglang-arrays": Wire(name_signed, arrays=True, topic_in_replay=False),
}


def encode(events: Sequence[Any], rank: int | None = 0) -> bytes:
    return msgspec.msgpack.encode([1789095808.5, list(events), rank])


@dataclass
class FakePublisher:
    """An engine's publisher: PUB and ROUTER on loopback, a buffer of past batches, numbers from 0."""

    wire: Wire = field(default_factory=Wire)
    port: int = 0
    """0: any free one."""
    replay_port: int = 0
    buffer_batches: int = 10_000
    topic: bytes = b""

    def __post_init__(self) -> None:
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)
        self.port = self._bind(self._pub, self.port)
        self.replay_port = self._bind(self._router, self.replay_port)
        self._numbers = itertools.count()
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=self.buffer_batches)
        self._lock = threading.Lock()
        self._stopping = False
        self.replays: list[int] = []
        """Numbers that were asked for."""
        self._thread = threading.Thread(target=self._serve_replays, daemon=True)
        self._thread.start()

    @staticmethod
    def _bind(socket: "zmq.Socket[bytes]", port: int) -> int:
        socket.linger = 0
        socket.bind(f"tcp://127.0.0.1:{port or '*'}")
        return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    @property
    def replay_endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.replay_port}"

    def publish(self, *events: Any, lost: bool = False, rank: int | None = 0) -> int:
        """`lost`: numbered and kept, and never sent. Returns the number."""
        return self.publish_raw(encode(events, rank), lost=lost)

    def publish_raw(self, payload: bytes, lost: bool = False) -> int:
        with self._lock:
            number = next(self._numbers)
            self._buffer.append((number, payload))
            if not lost:
                self._pub.send_multipart([self.topic, number.to_bytes(8, "big"), payload])
        return number

    def skip(self) -> None:
        """A batch that is neither sent nor kept."""
        next(self._numbers)

    def send_number(self, number: int, payload: bytes) -> None:
        """Out of order."""
        with self._lock:
            self._pub.send_multipart([self.topic, number.to_bytes(8, "big"), payload])

    def _serve_replays(self) -> None:
        while not self._stopping:
            if not self._router.poll(20):
                continue
            client, _, start = self._router.recv_multipart()
            self.replays.append(int.from_bytes(start, "big"))
            topic = [self.topic] if self.wire.topic_in_replay else []
            with self._lock:
                batches = [batch for batch in self._buffer if batch[0] >= self.replays[-1]]
            for number, payload in batches:
                self._router.send_multipart([client, b"", *topic, number.to_bytes(8, "big"), payload])
            self._router.send_multipart([client, b"", *([b""] if topic else []), END_SEQ, b""])

    def close(self) -> None:
        self._stopping = True
        self._thread.join()
        self._context.destroy(linger=0)
