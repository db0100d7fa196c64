"""Recorded traces as lists of requests: Mooncake's two, and agents' sessions cut into blocks of 16 tokens."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    blocks: tuple[int, ...]
    """Ids chained as in the trace: an equal id means an equal whole prefix."""
    tokens: int
    """Fewer than the blocks hold, where the last of them is partial."""


def recorded(path: Path) -> list[Request]:
    """In the order of the file, which is that of arrival."""
    return [_request(row) for row in _rows(path)]


def sessions(path: Path, between_s: float, rng: random.Random) -> list[Request]:
    """Sessions begin as a Poisson process, one in `between_s` on average. Within one the calls come when recorded, or
    where that isn't known after 1 s, 20 ms for each token of the answer before, and 4 s of thought on average."""
    starts: dict[str, float] = {}
    clocks: dict[str, float] = {}
    calls: list[tuple[float, int, Request]] = []
    last_start = 0.0
    for row in _rows(path):
        name = row["session_id"]
        if name not in starts:
            last_start += rng.expovariate(1 / between_s)
            starts[name] = clocks[name] = last_start
        at = starts[name] + row["t_in_session_ms"] / 1000 if "t_in_session_ms" in row else clocks[name]
        clocks[name] = at + 1 + 0.02 * row["output_length"] + rng.expovariate(1 / 4)
        calls.append((at, len(calls), _request(row)))
    return [request for _, _, request in sorted(calls, key=lambda call: call[:2])]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open() as lines:
        for line in lines:
            yield json.loads(line)


def _request(row: dict[str, Any]) -> Request:
    return Request(tuple(row["hash_ids"]), row["input_length"])
