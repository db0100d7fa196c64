"""One index in a process of its own, so that its memory can be told: `python -m loadtest.index_bench.subject KIND`.

Takes a JSON object a line on stdin, with `op` and its arguments, and answers each with one of numbers on stdout.
"""

import json
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from gateway.index.native_index import NativeIndex, load_library
from gateway.index.plain_index import PlainIndex
from gateway.index.prefix_index import Applied, PrefixIndex
from gateway.index.reader import SWEPT_AT_A_POLL
from loadtest.index_bench.join import follow
from replica.protocol.records import Delta, Snapshot, decode_entry, xor_root

SHARED_BLOCKS = 13
"""A system prompt of 208 tokens, which every replica holds."""
PROMPT_BLOCKS = 6250
DELTA_BLOCKS = 64
CHURN_BLOCKS = 8
DELTAS_A_SWEEP = 1000
"""As if there were 4,000 deltas a second."""
EPOCH = "e"

_PAGE = 4096


def make(kind: str, max_blocks: int) -> PrefixIndex:
    return (
        PlainIndex(max_blocks) if kind == "plain" else NativeIndex(load_library(), Random().getrandbits(64), max_blocks)
    )


class Subject:
    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._index = make(kind, 1 << 40)
        self._rng = Random(1)
        self._prompts: list[array[int]] = []
        self._last: dict[str, Delta] = {}

    def fill(self, blocks: int, replicas: int) -> dict[str, float]:
        """All replicas hold the system prompt, and each an equal share of the other blocks."""
        shared = self._rng.randbytes(8 * SHARED_BLOCKS)
        own = (blocks - SHARED_BLOCKS) // replicas
        before, spent = _resident_bytes(), 0.0
        for number in range(replicas):
            packed = shared + self._rng.randbytes(8 * own)
            started = time.perf_counter()
            applied = self._index.load(f"r{number}", Snapshot(EPOCH, 0, "0-0", packed))
            spent += time.perf_counter() - started
            assert applied is Applied.OK
            self._prompts.append(array("Q", packed[: 8 * PROMPT_BLOCKS]))
        return {
            "blocks": len(self._index),
            "bytes": _resident_bytes() - before - sum(8 * len(prompt) for prompt in self._prompts),
            "load_blocks_per_s": len(self._index) / spent,
        }

    def match(self, blocks: int, times: int) -> dict[str, list[float]]:
        """µs a call, each of another prompt, which one replica holds whole and all others the beginning of."""
        seconds = []
        for number in range(times):
            prompt = self._prompts[number % len(self._prompts)][:blocks]
            started = time.perf_counter()
            found = self._index.match(prompt)
            seconds.append(time.perf_counter() - started)
            assert found[f"r{number % len(self._prompts)}"].held == min(blocks, len(prompt))
        return {"us": [second * 1e6 for second in seconds]}

    def apply(self, deltas: int) -> dict[str, float]:
        """Blocks a second, from stream entries as Redis gives them, and from deltas with numbers."""
        result = {}
        for name in ("blocks_per_s", "decoded_blocks_per_s"):
            made = [self._next_delta(f"r{number % len(self._prompts)}") for number in range(deltas)]
            entries = [{key.encode(): _raw(value) for key, value in delta.encode().items()} for delta in made]
            started = time.perf_counter()
            if name == "blocks_per_s":
                for entry in entries:
                    delta = decode_entry(entry)
                    assert isinstance(delta, Delta) and self._index.apply(delta) is Applied.OK
            else:
                for delta in made:
                    assert self._index.apply(delta) is Applied.OK
            result[name] = sum(len(d.added) + len(d.removed) for d in made) / (time.perf_counter() - started)
        return result

    def hold(self, blocks: int) -> dict[str, float]:
        """Milliseconds of CPU of the longest step while a replica is loaded and swept away."""
        snapshot = Snapshot(EPOCH, 0, "0-0", self._rng.randbytes(8 * blocks))
        longest, started = 0.0, time.thread_time()
        for _ in self._index.load_in_steps("held", snapshot):
            longest, started = max(longest, time.thread_time() - started), time.thread_time()
        self._index.drop("held")
        size = len(self._index)
        swept = 0.0
        while len(self._index) > size - blocks:
            started = time.thread_time()
            self._index.sweep()
            swept = max(swept, time.thread_time() - started)
        return {"load_ms": longest * 1e3, "sweep_ms": swept * 1e3}

    def churn(self, prompts: int) -> dict[str, float]:
        """MiB that the process grows by over the last nine tenths of so many prompts of CHURN_BLOCKS blocks that never
        come again, in caches that hold 250 of them, while replicas come back with new epochs all the time."""
        rng, caches, begun = self._rng, 32, 0
        deltas: list[Iterator[Delta]] = [iter(()) for _ in range(caches)]
        for number in range(prompts):
            if number == prompts // 10:
                begun = _resident_bytes()
            delta = next(deltas[number % caches], None)
            if delta is None:
                deltas[number % caches] = _cache_life(rng, f"c{number % caches}", str(number), rng.randrange(1, 2000))
                delta = next(deltas[number % caches])
            assert self._index.apply(delta) is Applied.OK
            if number % DELTAS_A_SWEEP == 0:
                self._index.sweep(SWEPT_AT_A_POLL)
        grown = _resident_bytes() - begun
        for number in range(caches):
            self._index.drop(f"c{number}")
        return {"growth_mib": grown / 2**20}

    def follow(self, url: str, fleet: str, replicas: int, seq: int) -> dict[str, float]:
        return follow(url, fleet, make(self._kind, 1 << 40), replicas, seq)

    def _next_delta(self, replica: str) -> Delta:
        """Takes the blocks of the delta before out again, so that sizes stay."""
        added = tuple(array("Q", self._rng.randbytes(8 * DELTA_BLOCKS)))
        last = self._last.get(replica)
        if last is None:
            slot = self._index._slots[replica]
            last = Delta(replica, EPOCH, 0, (), (), slot.count, slot.root)
        count = last.count + len(added) - len(last.added)
        root = last.root ^ xor_root(added) ^ xor_root(last.added)
        self._last[replica] = Delta(replica, EPOCH, last.seq + 1, added, last.added, count, root)
        return self._last[replica]


def _cache_life(rng: Random, replica: str, epoch: str, prompts: int) -> Iterator[Delta]:
    held: deque[tuple[int, ...]] = deque()
    root = 0
    for seq in range(1, prompts + 1):
        added = tuple(array("Q", rng.randbytes(8 * CHURN_BLOCKS)))
        held.append(added)
        removed = held.popleft() if len(held) > 250 else ()
        root ^= xor_root(added) ^ xor_root(removed)
        yield Delta(replica, epoch, seq, added, removed, CHURN_BLOCKS * len(held), root)


def _raw(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def main(kind: str) -> None:
    subject = Subject(kind)
    operations: dict[str, Callable[..., dict[str, Any]]] = {
        "fill": subject.fill,
        "match": subject.match,
        "apply": subject.apply,
        "hold": subject.hold,
        "churn": subject.churn,
        "follow": subject.follow,
    }
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(operations[request.pop("op")](**request)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
