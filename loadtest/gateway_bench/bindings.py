"""The mock and the client in C++, by ctypes: in Python they would cost more than what is measured between them."""

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from native.build import build_library

_SOURCES = Path(__file__).parent / "csrc"
_FLAGS = ("-O2", "-std=c++17", "-fPIC", "-shared", "-Wall", "-Wextra")
_FIRSTS_MAX = 1 << 20


class _Job(ctypes.Structure):
    _fields_ = (
        ("port", ctypes.c_int),
        ("connections", ctypes.c_int),
        *((name, ctypes.c_int64) for name in ("requests", "seconds_ns", "limit_ns", "stagger_ns")),
        ("chunks", ctypes.c_int),
    )


class _Result(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_int64) for name in ("answered", "failed", "broken", "unfinished", "chunks", "wall_ns", "firsts")
    )


@dataclass(frozen=True, slots=True)
class Job:
    """Of the client: as many requests as `connections` can send one after another in `seconds`."""

    port: int
    connections: int
    seconds: float
    limit_s: float
    """What isn't answered by then isn't waited for."""
    requests: int = 2**62
    stagger_s: float = 0.0
    """Between the first requests of two connections."""
    chunks: int = 0
    """That an answer must have to be good."""


@dataclass(frozen=True, slots=True)
class Done:
    answered: int
    failed: int
    """Not 200, not as many chunks as there should be, cut off, or not done in time."""
    chunks: int
    seconds: float
    firsts_s: list[float]
    """Of each good answer, the time to its first chunk; to its end where it has none."""


@functools.cache
def _library() -> ctypes.CDLL:
    """Raises BuildError."""
    library = ctypes.CDLL(str(build_library("gateway_bench", _SOURCES, _FLAGS)))
    library.run_load.restype = None
    return library


def build() -> None:
    """Now rather than in each process. Raises BuildError."""
    _library()


def serve_mock(port: int) -> int:
    """Until the process is ended; errno where the port can't be had."""
    return int(_library().serve_mock(port))


def run_load(job: Job, requests: Sequence[bytes]) -> Done:
    """The requests in turns, each with its head."""
    firsts = (ctypes.c_int64 * _FIRSTS_MAX)()
    result = _Result()
    _library().run_load(
        ctypes.byref(
            _Job(
                job.port,
                job.connections,
                job.requests,
                _ns(job.seconds),
                _ns(job.limit_s),
                _ns(job.stagger_s),
                job.chunks,
            )
        ),
        (ctypes.c_char_p * len(requests))(*requests),
        (ctypes.c_int64 * len(requests))(*map(len, requests)),
        ctypes.c_int(len(requests)),
        firsts,
        ctypes.c_int64(_FIRSTS_MAX),
        ctypes.byref(result),
    )
    return Done(
        answered=result.answered,
        failed=result.failed + result.broken + result.unfinished,
        chunks=result.chunks,
        seconds=result.wall_ns / 1e9,
        firsts_s=[ns / 1e9 for ns in firsts[: result.firsts]],
    )


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
