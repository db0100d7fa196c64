"""Recorded workloads, read from the traces' folder (its README says where each comes from)."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import orjson

from loadtest.simulate.errors import SimulateError
from loadtest.simulate.prompts import Row, later_extensions, make_requests
from loadtest.simulate.workload import Kind, Setting, Workload
from replica.protocol.hashing import BLOCK_SIZE

_MOONCAKE_BLOCK = 512
_DECODE_S = 0.02
"""A real token's time in the recordings, which don't say."""


def _lines(setting: Setting, name: str) -> Iterator[dict[str, Any]]:
    if setting.traces is None:
        raise SimulateError(f"--traces: a recorded workload needs the folder that holds {name}; or set TRACES")
    path = setting.traces / name
    if not path.is_file():
        raise SimulateError(f"--traces: there is no {path}")
    with path.open("rb") as file:
        for line in file:
            yield orjson.loads(line)


def _mooncake(name: str) -> "Kind":
    return Kind(
        lambda setting: _read_mooncake(setting, f"mooncake_{name}.jsonl"),
        f"Mooncake's {name} trace (FAST'25), its times divided by --rate-scale",
        rate_scale=1.5 if name == "conversation" else 1.0,
        prefill_only_rate_scale=3.0 if name == "conversation" else 2.0,
    )


def _read_mooncake(setting: Setting, name: str) -> Workload:
    """A token stands for 32, so that a block of the trace is one of ours. The seed shuffles those that come at once."""
    stride = _MOONCAKE_BLOCK // BLOCK_SIZE
    rows = [
        Row(
            at_s=line["timestamp"] / 1000 / setting.rate_scale,
            tokens=_coarse(line["input_length"], len(line["hash_ids"]), stride),
            blocks=line["hash_ids"],
            output=max(1, line["output_length"]),
        )
        for line in _lines(setting, name)
    ]
    if setting.seed:
        random.Random(setting.seed).shuffle(rows)
        rows.sort(key=lambda row: row.at_s)
    rows = rows[: setting.limit]
    return Workload(name, make_requests(rows, later_extensions(rows), stride), stride)


def _coarse(tokens: int, blocks: int, stride: int) -> int:
    """Rounded so that the number of blocks stays, and whole blocks stay whole."""
    return min(
        max(round(tokens / stride), (blocks - 1) * BLOCK_SIZE + 1), blocks * BLOCK_SIZE - (tokens % _MOONCAKE_BLOCK > 0)
    )


def _sessions(lines: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    by_id: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_id.setdefault(line["session_id"], []).append(line)
    return list(by_id.values())


def _fitting(sessions: list[list[dict[str, Any]]], setting: Setting) -> list[list[dict[str, Any]]]:
    """Those of which every request fits into a replica's KV."""
    return [
        session
        for session in sessions
        if all(line["input_length"] + line["output_length"] <= setting.kv_tokens for line in session)
    ]


def _read_taubench(setting: Setting) -> Workload:
    """Sessions begin one in 6 s (Poisson); the next call comes 1 s and an exponential 4 s after an answer."""
    randomness = random.Random(setting.seed)
    sessions = _fitting(_sessions(_lines(setting, "taubench_airline_blk16.jsonl")), setting)
    gaps = [[1 + randomness.expovariate(1 / 4) for _ in session] for session in sessions]
    return _play("taubench", setting, sessions, gaps, 6.0, randomness)


def _read_miniswe(setting: Setting) -> Workload:
    """Sessions begin one in 20 s (Poisson); the pauses between an answer and the next call are as recorded."""
    sessions = _fitting(_sessions(_lines(setting, "miniswe_blk16.jsonl")), setting)
    gaps = [
        [0.0]
        + [
            max(
                0.1, (after["t_in_session_ms"] - before["t_in_session_ms"]) / 1000 - _DECODE_S * before["output_length"]
            )
            for before, after in pairwise(session)
        ]
        for session in sessions
    ]
    return _play("miniswe", setting, sessions, gaps, 20.0, random.Random(setting.seed))


def _play(
    name: str,
    setting: Setting,
    sessions: list[list[dict[str, Any]]],
    gaps: list[list[float]],
    period_s: float,
    randomness: random.Random,
) -> Workload:
    order = list(range(len(sessions)))
    randomness.shuffle(order)
    rows: list[Row] = []
    successors: list[int] = []
    begin = 0.0
    for index in order:
        begin += randomness.expovariate(setting.rate_scale / period_s)
        for turn, (line, gap) in enumerate(zip(sessions[index], gaps[index], strict=True)):
            if setting.limit is not None and len(rows) >= setting.limit:
                break
            row = Row(begin, line["input_length"], line["hash_ids"], max(1, line["output_length"]))
            if turn:
                row = replace(row, at_s=gap, after=len(rows) - 1)
                successors[-1] = len(rows)
            rows.append(row)
            successors.append(-1)
    return Workload(name, make_requests(rows, successors), 1)


TRACES = {
    "conversation": _mooncake("conversation"),
    "synthetic": _mooncake("synthetic"),
    "taubench": Kind(_read_taubench, "tau-bench airline sessions that fit, closed loop in each", "cpu", 4),
    "miniswe": Kind(_read_miniswe, "mini-swe-agent sessions that fit, closed loop in each", "cpu", 4, kv_tokens=65_536),
}
