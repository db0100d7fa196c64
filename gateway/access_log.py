"""One line of JSON for each request: what was asked, where it went and why, and how long it took. Never any text of a
prompt or an answer, no query string and no key.

`line` is pure. The writer has a thread, so that a slow disk or a full pipe holds nobody up.
"""

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import orjson

from gateway.traces import Trace

log = logging.getLogger(__name__)

PATH_MAX = 128
METHOD_MAX = 16
_FLUSH_S = 0.2
_QUEUE = 20_000
_CLOSE_S = 2.0
_OPTIONS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z
OFF, STDOUT = "off", "-"


@dataclass(slots=True)
class Answered:
    """What is known of every request, also of one that never got as far as to a trace."""

    method: str
    path: str
    """Without the query."""
    endpoint: str
    """The route's own path, or `unmatched`."""
    status: int
    """499: the client left."""
    took_s: float
    request_id: str | None = None
    code: str | None = None
    """Of an error that the gateway made."""


@dataclass(slots=True)
class Course:
    """How a request went, in seconds."""

    ttft_s: float | None = None
    held_s: float | None = None
    """From its tokens being known to its first dispatch: deciding, and waiting for a replica or for room."""
    itl_s: float | None = None
    """Mean time between tokens; None for what wasn't streamed, or has fewer than two."""
    output_tokens: int = 0


def course(trace: Trace, took_s: float) -> Course:
    answer, tokens = trace.answer, trace.answer.tokens
    ttft_s = itl_s = held_s = None
    if trace.first_byte_at is not None:
        ttft_s = trace.first_byte_at - trace.received_at
        if tokens > 1 and answer.is_stream:
            itl_s = (took_s - ttft_s) / (tokens - 1)
    if trace.tokenised_at is not None:
        sent_at = trace.dispatched_at
        held_s = (trace.received_at + took_s if sent_at is None else sent_at) - trace.tokenised_at
    return Course(ttft_s, held_s, itl_s, tokens)


def line(answered: Answered, trace: Trace | None, went: Course, at: datetime) -> bytes:
    """`at`: when the answer ended. Times are seconds; a field that doesn't apply is null or left out."""
    fields: dict[str, object] = {
        "time": at,
        "request_id": answered.request_id,
        "method": answered.method[:METHOD_MAX],
        "path": answered.path[:PATH_MAX],
        "status": answered.status,
        "total_s": _rounded(answered.took_s),
    }
    if answered.code is not None:
        fields["error"] = answered.code
    if trace is not None:
        _add_traced(fields, trace, went)
    try:
        return orjson.dumps(fields, option=_OPTIONS)
    except TypeError:
        # What is no UTF-8 in a path comes as lone surrogates, which JSON can't hold.
        fields["path"] = answered.path[:PATH_MAX].encode(errors="replace").decode()
        return orjson.dumps(fields, option=_OPTIONS)


def _add_traced(fields: dict[str, object], trace: Trace, went: Course) -> None:
    fields["model"], fields["tenant"] = trace.model, trace.tenant
    fields["prompt_tokens"] = trace.prompt_tokens or None
    considered, attempts = trace.considered, trace.attempts
    if considered is not None:
        decision = considered.decision
        fields["replica"], fields["policy"] = decision.choice, decision.policy
        fields["reason"], fields["cached_predicted"] = considered.reason.value, decision.cached_tokens
        fields["cached_delivered"] = trace.delivered_tokens
        fields["output_tokens"] = went.output_tokens or None
        fields["ttft_s"], fields["itl_s"] = _rounded(went.ttft_s), _rounded(went.itl_s)
    if attempts:
        fields["retries"] = len(attempts) - 1
        if attempts[-1].failure is not None:
            fields.setdefault("error", attempts[-1].failure)
    fields["held_s"] = _rounded(went.held_s)
    if trace.span is not None:
        fields["trace_id"] = f"{trace.span.trace_id:032x}"


def _rounded(seconds: float | None) -> float | None:
    """To microseconds; `round` takes five times as long."""
    return None if seconds is None else int(seconds * 1e6 + 0.5) / 1e6


class AccessLog:
    """Start it, put lines, close it. `put` never blocks; what finds no room is dropped and counted."""

    def __init__(self, target: str, dropped: Callable[[int], object] = lambda lines: None) -> None:
        """`target`: a file, `-` for standard output, or `off`. Raises OSError where the file can't be opened."""
        self.is_on = target != OFF
        self._path = None if target in (OFF, STDOUT) else Path(target)
        self._dropped = dropped
        self._lines: deque[bytes] = deque()
        self._descriptor: int | None = None
        self._reopen = False
        self._is_failing = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="access log", daemon=True)
        if self.is_on:
            self._descriptor = self._open()

    def start(self) -> None:
        if self.is_on:
            self._thread.start()

    def put(self, data: bytes) -> None:
        if len(self._lines) >= _QUEUE:
            self._dropped(1)
            return
        self._lines.append(data)

    def reopen(self) -> None:
        """The file has been moved away: what comes goes to a new one of its name. Safe in a signal handler."""
        self._reopen = True

    def close(self) -> None:
        """What is queued is written first, unless nobody reads it."""
        if not self.is_on:
            return
        self._stop.set()
        self._thread.join(_CLOSE_S)
        if self._path is not None and self._descriptor is not None and not self._thread.is_alive():
            os.close(self._descriptor)

    def _run(self) -> None:
        while not self._stop.wait(_FLUSH_S):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        try:
            if self._reopen:
                self._reopen = False
                self._renew()
            data = self._take()
            while data:
                data = data[os.write(self._descriptor or 0, data) :]
            if self._is_failing:
                log.info("the access log is written again")
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                log.error("the access log can't be written: %s", error.strerror)
            self._is_failing = True

    def _take(self) -> bytes:
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        return b"".join(lines)

    def _renew(self) -> None:
        """The old file stays in use where the new one can't be opened."""
        if self._path is None:
            return
        fresh, old = self._open(), self._descriptor
        self._descriptor = fresh
        if old is not None:
            os.close(old)

    def _open(self) -> int:
        if self._path is None:
            return sys.stdout.fileno()
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
