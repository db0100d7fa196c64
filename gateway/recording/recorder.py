"""Requests to a trace file, off the event loop: a bounded queue, and one thread that does all the work.

When the file is full it becomes FILE.1, in the place of the one before, and a new one begins, with ids, pseudonyms and
a random key of its own: so there are never more than two, and each can be given away by itself. Lines come in the order
in which answers end.
"""

import contextlib
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

from gateway.dispatch import Call
from gateway.metrics import Metrics
from gateway.recording.answer import AnswerCount
from gateway.recording.lines import Entry, Lines

log = logging.getLogger(__name__)

_QUEUE = 10_000
_FLUSH_S = 1.0
_KEY_BYTES = 16


class TraceWriter:
    """Start it, put entries, close it. `put` never blocks."""

    def __init__(self, path: Path, max_bytes: int, began_at: float, metrics: Metrics, queue_size: int = _QUEUE) -> None:
        """Opens the file; one of that name becomes FILE.1. Raises OSError."""
        self._path = path
        self._max_bytes = max_bytes
        self._began_at = began_at
        self._metrics = metrics
        self._queue: queue.Queue[Entry | None] = queue.Queue(queue_size)
        self._file: BinaryIO | None = None
        if path.is_file():
            self._keep_old()
        self._begin_file()
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, entry: Entry) -> None:
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            self._metrics.recorded("dropped")

    def close(self) -> None:
        """What is queued is written first."""
        self._queue.put(None)
        self._thread.join()

    def _begin_file(self) -> None:
        self._lines = Lines(self._began_at, secrets.token_bytes(_KEY_BYTES))
        self._file = self._path.open("wb")
        self._bytes = 0

    def _run(self) -> None:
        flushed_at = time.monotonic()
        while True:
            try:
                entry = self._queue.get(timeout=_FLUSH_S)
                if entry is None:
                    break
                self._metrics.recorded("written" if self._write(entry) else "dropped")
            except queue.Empty:
                pass
            if time.monotonic() >= flushed_at + _FLUSH_S:
                flushed_at = time.monotonic()
                self._guarded(lambda file: file.flush())
        self._guarded(lambda file: file.close())

    def _write(self, entry: Entry) -> bool:
        line = self._lines.line(entry)
        if self._bytes and self._bytes + len(line) > self._max_bytes:
            self._guarded(lambda file: self._rotate(file))
            line = self._lines.line(entry)
        self._bytes += len(line)
        return self._guarded(lambda file: file.write(line))

    def _rotate(self, file: BinaryIO) -> None:
        file.close()
        self._keep_old()
        self._begin_file()

    def _keep_old(self) -> None:
        self._path.replace(f"{self._path}.1")

    def _guarded(self, action: Callable[[BinaryIO], object]) -> bool:
        """A disk that is full or gone ends the recording, and nothing else."""
        if self._file is None:
            return False
        try:
            action(self._file)
        except (OSError, ValueError) as error:
            log.error("recording to %s ends: %s", self._path, error)
            with contextlib.suppress(OSError):  # It may still have something to write.
                self._file.close()
            self._file = None
            return False
        return True


_NOTHING = nullcontext()


class Recorder:
    """What handlers see of it. Without a writer it does nothing."""

    def __init__(self, writer: TraceWriter | None, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._clock = clock

    @property
    def is_on(self) -> bool:
        return self._writer is not None

    def recording(self, call: Call) -> AbstractContextManager[None]:
        """The request, until its answer has ended, however it ends."""
        return _NOTHING if self._writer is None else self._recording(self._writer, call)

    @contextmanager
    def _recording(self, writer: TraceWriter, call: Call) -> Iterator[None]:
        ended = False
        try:
            yield
            ended = True
        finally:
            writer.put(_entry(call, call.trace.answer, self._clock(), ended))


def _entry(call: Call, answer: AnswerCount, now: float, ended: bool) -> Entry:
    trace = call.trace
    decision = None if trace.considered is None else trace.considered.decision
    return Entry(
        received_at=trace.received_at,
        duration_s=now - trace.received_at,
        tokens=call.prompt.tokens,
        hashes=call.prompt.hashes,
        output_tokens=answer.tokens,
        estimated=answer.told is None,
        session=call.prompt.session,
        tenant=trace.tenant or str(call.payload.get("cache_salt") or ""),
        predicted=None if decision is None else decision.cached_tokens,
        delivered=trace.delivered_tokens,
        ttft_s=trace.last_at("first_byte"),
        failed=not ended or (bool(trace.attempts) and trace.attempts[-1].failure is not None),
    )
