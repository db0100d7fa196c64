"""Traces of requests, one JSON object a line: how long each prompt and answer was, and which blocks prompts share.

`hash_ids` stand for blocks of tokens, each for the whole prefix up to and with its block. Four shapes are read:

- Mooncake's (FAST'25): `timestamp` in ms since the start, `input_length`, `output_length`, `hash_ids`;
- the same with `session_id`, as a gateway records it (`--record`), with `block_size` and more beside;
- sessions with `t_in_session_ms`, recorded one by one: when each began among the others isn't known;
- sessions without any times.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import orjson

from loadtest.trace.errors import TraceError
from replica.protocol.hashing import BLOCK_SIZE

BLOCK_SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048)
"""That a trace may have without saying so: each prompt's length and number of ids must fit."""


class Times(Enum):
    """What a trace tells about time."""

    ARRIVALS = "arrivals"
    IN_SESSION = "in session"
    NONE = "none"


_TIME_FIELDS = {Times.ARRIVALS: "timestamp", Times.IN_SESSION: "t_in_session_ms"}


@dataclass(frozen=True, slots=True)
class Line:
    at_s: float
    """Since the trace's first request, or since its session's; 0 where there are no times."""
    tokens: int
    output: int
    blocks: Sequence[int]
    session: str = ""
    duration_s: float | None = None
    """Until its answer's end, where that was recorded."""


@dataclass(frozen=True, slots=True)
class TraceFile:
    name: str
    times: Times
    block: int
    """Tokens in a block."""
    lines: list[Line]
    """By time, where there are arrivals; else as in the file. Blocks are numbered from 0 as they first come."""


def read_trace(path: Path, scale: int = 1) -> TraceFile:
    """`scale` divides lengths, and keeps the number of blocks. Raises TraceError."""
    try:
        with path.open("rb") as file:
            records = [_parse(line, f"{path}:{number}") for number, line in enumerate(file, 1) if line.strip()]
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    if not records:
        raise TraceError(f"{path}: there are no requests in it")
    times = next((kind for kind, field in _TIME_FIELDS.items() if field in records[0]), Times.NONE)
    if times is not Times.ARRIVALS and "session_id" not in records[0]:
        raise TraceError(f"{path}: its requests have neither timestamp nor session_id")
    block = _block_size(records, path)
    if block % (scale * BLOCK_SIZE):
        raise TraceError(f"--scale: blocks of {block} tokens / {scale} aren't of {BLOCK_SIZE} or a multiple of it")
    return TraceFile(path.stem, times, block // scale, _lines(records, times, block, scale, path))


def coarser(tokens: int, blocks: int, block: int, factor: int) -> int:
    """Tokens / factor, rounded so that the number of blocks stays, and whole blocks stay whole."""
    small = block // factor
    return min(max(round(tokens / factor), (blocks - 1) * small + 1), blocks * small - (tokens % block > 0))


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = orjson.loads(line)
        fits = record["input_length"] >= 1 and record["output_length"] >= 0 and len(record["hash_ids"]) >= 1
    except orjson.JSONDecodeError as error:
        raise TraceError(f"{where}: no JSON ({error})") from error
    except (KeyError, TypeError) as error:
        raise TraceError(f"{where}: input_length, output_length or hash_ids is missing or no such thing") from error
    if not fits:
        raise TraceError(f"{where}: a prompt has at least one token and one block")
    assert isinstance(record, dict)
    return record


def _block_size(records: Sequence[dict[str, Any]], path: Path) -> int:
    told = records[0].get("block_size")
    for block in BLOCK_SIZES if told is None else (told,):
        if all(len(record["hash_ids"]) == -(-record["input_length"] // block) for record in records):
            return int(block)
    raise TraceError(f"{path}: the lengths of prompts and the numbers of hash_ids fit no block size")


def _lines(records: Sequence[dict[str, Any]], times: Times, block: int, scale: int, path: Path) -> list[Line]:
    field = _TIME_FIELDS.get(times)
    numbers: dict[Any, int] = {}
    lines = []
    try:
        begin_ms = 0.0
        if times is Times.ARRIVALS and field:
            records = sorted(records, key=lambda record: float(record[field]))
            begin_ms = float(records[0][field])
        for record in records:
            ids, duration_ms = record["hash_ids"], record.get("duration_ms")
            lines.append(
                Line(
                    at_s=(float(record[field]) - begin_ms) / 1000 if field else 0.0,
                    tokens=coarser(record["input_length"], len(ids), block, scale),
                    output=max(1, round(record["output_length"] / scale)),
                    blocks=[numbers.setdefault(item, len(numbers)) for item in ids],
                    session=str(record.get("session_id", "")),
                    duration_s=None if duration_ms is None else float(duration_ms) / 1000,
                )
            )
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{path}: request {len(lines) + 1} differs from the first: {error!r}") from error
    return lines
