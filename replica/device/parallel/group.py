"""The ranks of a tensor-parallel group, as rank 0 sees them: child processes that are started, told what to do, watched
and ended.

They live and die together. A rank that dies takes the group with it: the others are killed and the owner is told, since
whoever waits in a collective for a dead rank waits long (gloo notices; NCCL doesn't). Rank 0's death ends the others in
two ways, of which each is enough: the kernel kills them (PR_SET_PDEATHSIG), and their connection to rank 0 closes.
"""

import contextlib
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from replica.device.parallel import frames

_LOG = logging.getLogger(__name__)
_STOP_S = 10.0
"""A follower gets to end by itself."""
_REAP_S = 5.0

START, RUN, STOP = range(3)
"""What rank 0 sends: how to build, with what; a step; the end."""
READY, FAILED = range(2)
"""What a follower sends: it is built; why it ends."""

FOLLOWER = "replica.device.parallel.rank"


class RankDied(Exception):
    """A rank has died, and with it the group; the message says which and how."""


class RankGroup:
    def __init__(self, size: int, entry: str = FOLLOWER, last_s: int | None = None) -> None:
        """`entry`: the module that followers run. `last_s`: what this process gets to end by itself once a rank has
        died; whatever it then still waits for, the kernel ends it (SIGALRM)."""
        assert size > 1
        self._size = size
        self._entry = entry
        self._last_s = last_s
        self._children: list[subprocess.Popen[bytes]] = []
        self._links: list[socket.socket] = []
        self._on_death: Callable[[str], None] = lambda message: None
        self._state = threading.Condition()
        self._num_ready = 0
        self._failure: str | None = None
        self._stopping = False
        # NOTE: the thread that starts a child is the "parent" whose death PR_SET_PDEATHSIG means, so it has to live on.
        self._watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    @property
    def failure(self) -> str | None:
        """Which rank died, and how."""
        return self._failure

    def start(self) -> None:
        self._watcher.start()
        with self._state:
            self._state.wait_for(lambda: len(self._links) == self._size - 1 or self._failure is not None)
        self._check()

    def send(self, kind: int, value: Any) -> None:
        """To all followers. Raises RankDied."""
        frame = frames.pack(kind, value)
        for link in self._links:
            try:
                frames.send(link, frame)
            except (frames.Closed, OSError) as error:
                self._wait_for_death(_REAP_S)
                raise RankDied(self._failure or "a rank closed its connection") from error

    def wait_ready(self, timeout_s: float) -> None:
        """Until all followers have said so. Raises RankDied."""
        with self._state:
            self._state.wait_for(lambda: self._num_ready == self._size - 1 or self._failure is not None, timeout_s)
            num_ready = self._num_ready
        self._check()
        if num_ready < self._size - 1:
            raise RankDied(f"only {num_ready} of {self._size - 1} ranks were ready after {timeout_s:.0f} s")

    def listen(self, on_death: Callable[[str], None]) -> None:
        """`on_death` is called once, from the watching thread, with which rank died and how."""
        with self._state:
            self._on_death = on_death
            failure = self._failure
        if failure is not None:
            on_death(failure)

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Where something fails inside because a rank has died, says so instead. Raises RankDied."""
        try:
            yield
        except RuntimeError as error:
            # Whoever waited for the dead may hear of it before us.
            self._wait_for_death(1.0)
            if self._failure is None:
                raise
            raise RankDied(self._failure) from error

    def close(self) -> None:
        """Ends all followers, the willing ones gently; a second time does nothing."""
        with self._state:
            if self._stopping:
                return
            self._stopping = True
        stop = frames.pack(STOP, None)
        for link in self._links:
            try:
                frames.send(link, stop)
            except (frames.Closed, OSError):
                continue
        self._end_children(_STOP_S if self._failure is None else 0.0)
        if self._watcher.ident is not None:
            self._watcher.join(_REAP_S)
        for link in self._links:
            link.close()

    def _check(self) -> None:
        if self._failure is not None:
            raise RankDied(self._failure)

    def _wait_for_death(self, timeout_s: float) -> None:
        with self._state:
            self._state.wait_for(lambda: self._failure is not None or self._stopping, timeout_s)

    def _watch(self) -> None:
        try:
            for rank in range(1, self._size):
                self._spawn(rank)
        except OSError as error:
            self._died(f"rank {len(self._children) + 1} could not be started: {error}")
            return
        with self._state:
            self._state.notify_all()
        reasons = dict.fromkeys(range(1, self._size), "")
        with selectors.DefaultSelector() as selector:
            for rank, link in enumerate(self._links, start=1):
                selector.register(link, selectors.EVENT_READ, rank)
            while selector.get_map():
                for key, _ in selector.select():
                    try:
                        self._hear(key.data, reasons)
                    except (frames.Closed, OSError):
                        selector.unregister(key.fileobj)
                        if not self._stopping and self._failure is None:
                            self._died(self._obituary(key.data, reasons[key.data]))

    def _spawn(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        try:
            # Of the same process group: who kills the group as a whole gets all of it.
            command = [sys.executable, "-m", self._entry, *map(str, (theirs.fileno(), os.getpid(), rank))]
            self._children.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]))
            self._links.append(ours)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()

    def _hear(self, rank: int, reasons: dict[int, str]) -> None:
        kind, header, data = frames.receive(self._links[rank - 1])
        if kind == FAILED:
            reasons[rank] = frames.unpack(frames.Text, header, data).text
        elif kind == READY:
            with self._state:
                self._num_ready += 1
                self._state.notify_all()

    def _obituary(self, rank: int, reason: str) -> str:
        try:
            code = self._children[rank - 1].wait(_REAP_S)
        except subprocess.TimeoutExpired:
            return f"rank {rank} of {self._size} has closed its connection"
        if reason:
            return f"rank {rank} of {self._size}: {reason}"
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        return f"rank {rank} of {self._size} {how}"

    def _died(self, message: str) -> None:
        if self._last_s is not None:
            signal.alarm(self._last_s)
        _LOG.error("%s; the group ends", message)
        self._end_children(0.0)
        with self._state:
            self._failure = message
            self._state.notify_all()
            on_death = self._on_death
        on_death(message)

    def _end_children(self, patience_s: float) -> None:
        for child in self._children:
            try:
                child.wait(patience_s)
            except subprocess.TimeoutExpired:
                child.kill()
        for child in self._children:
            child.wait()
