"""Several gateway processes on one port: forked, watched, and begun anew where one dies. They share Redis, and the
limits of keys.

The kernel spreads connections over the sockets that share the port, one for each worker. The supervisor keeps every
socket open, so that what waits in the queue of a worker that dies is served by the next one in its place.
"""

import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.errors import StartError

log = logging.getLogger(__name__)

_SIGNALS = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD))
_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.2
_RESTART_S = 1.0
"""From one start of a worker to the next at least."""


@dataclass(slots=True)
class _Worker:
    listener: socket.socket
    pid: int = 0
    started_at: float = 0.0


class Supervisor:
    def __init__(
        self,
        listeners: Sequence[socket.socket],
        serve: Callable[[socket.socket, Callable[[], None]], None],
        on_ready: Callable[[], None],
    ) -> None:
        """`serve` is a worker's life in a process of its own: it is given a socket of its own that listens, and what to
        call when it serves. `on_ready` is called once all of them do."""
        self._workers = [_Worker(listener) for listener in listeners]
        self._serve = serve
        self._on_ready = on_ready
        self._told: tuple[int, int] = os.pipe()
        """A byte from each worker that serves."""
        os.set_blocking(self._told[0], False)
        self._ready = 0
        self._stopping = False

    def run(self) -> None:
        """Until told to stop, and all have drained. No other thread may run yet. Raises StartError where one can't
        even begin, or ends badly."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            for worker in self._workers:
                self._start(worker)
            while any(worker.pid for worker in self._workers) or not self._stopping:
                self._turn()
        finally:
            for worker in self._workers:
                if worker.pid:
                    os.kill(worker.pid, signal.SIGTERM)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def _turn(self) -> None:
        told = signal.sigtimedwait(_SIGNALS, _LOOK_S)
        if told is not None and told.si_signo in (signal.SIGTERM, signal.SIGINT):
            self._stop()
        elif told is not None and told.si_signo == signal.SIGHUP:
            self._pass_on(signal.SIGHUP)
        self._hear()
        for worker in self._workers:
            self._reap(worker)
            if not worker.pid and not self._stopping and time.monotonic() >= worker.started_at + _RESTART_S:
                self._start(worker)

    def _start(self, worker: _Worker) -> None:
        worker.started_at = time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        worker.pid = os.fork()
        if worker.pid == 0:
            _end_with(parent)
            # NOTE: _exit, so that nothing of the supervisor's runs in the child.
            os._exit(self._life(worker))

    def _life(self, worker: _Worker) -> int:
        os.close(self._told[0])
        for other in self._workers:
            if other is not worker:
                other.listener.close()
        # Until the worker has a use for it.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        try:
            self._serve(worker.listener, self._say_ready)
        except StartError as error:
            print(f"gateway: {error}", file=sys.stderr, flush=True)
            return 1
        return 0

    def _say_ready(self) -> None:
        os.write(self._told[1], b".")

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            before = self._ready
            self._ready += len(os.read(self._told[0], 64))
            if before < len(self._workers) <= self._ready:
                self._on_ready()

    def _reap(self, worker: _Worker) -> None:
        if not worker.pid:
            return
        pid, status = os.waitpid(worker.pid, os.WNOHANG)
        if pid == 0:
            return
        worker.pid = 0
        code = os.waitstatus_to_exitcode(status)
        if code > 0 and self._ready < len(self._workers):
            # It has said why.
            raise StartError("a worker can't start")
        if not self._stopping:
            log.error("worker %d ended with %d; another takes its place", pid, code)

    def _stop(self) -> None:
        """NOTE: our own sockets go first. As long as one is open the kernel gives it connections, which nobody takes
        once the workers have closed theirs."""
        self._stopping = True
        for worker in self._workers:
            worker.listener.close()
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.pid:
                os.kill(worker.pid, number)


def _end_with(parent: int) -> None:
    """A worker doesn't outlive a supervisor that is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:
        os._exit(1)
