"""A child process: its log, the line by which it says that it serves, its end."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_POLL_S = 0.05
_LOG_TAIL_LINES = 5
_PR_SET_PDEATHSIG = 1


class ProcessFailed(Exception):
    """A process of the local fleet has died, or didn't become ready."""


class ManagedProcess:
    """Started in a session of its own, so that a Ctrl-C in the terminal reaches only us and we stop things in order."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        ready_line: str,
        log: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`ready_line` is a regular expression whose first group is the process's URL; `env` goes on top of ours."""
        self.name = name
        self.url = ""
        self._ready_line = re.compile(ready_line)
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(env or {})},
                preexec_fn=_end_with_parent,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> bool:
        """Whether it has said that it is ready. Raises ProcessFailed where it has died."""
        if self._process.poll() is not None:
            raise ProcessFailed(f"{self.name} ended with status {self._process.returncode}: {self._last_words()}")
        found = self._ready_line.search(self._log.read_text(errors="replace"))
        if found:
            self.url = found.group(1)
        return found is not None

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def ask_to_stop(self) -> None:
        if not self.has_ended():
            self._process.send_signal(signal.SIGTERM)

    def wait_stopped(self, timeout_s: float) -> None:
        """Kills it after the time-out."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        said = " / ".join(lines[-_LOG_TAIL_LINES:]) or "it said nothing"
        return f"{said} (log: {self._log})"


def _end_with_parent() -> None:
    """Runs in the child: where we are killed outright, it gets the signal that we can't send any more (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


def wait_ready(processes: Sequence[ManagedProcess], timeout_s: float) -> None:
    """Raises ProcessFailed as soon as one of them has died."""
    deadline = time.monotonic() + timeout_s
    waiting = list(processes)
    while waiting:
        waiting = [process for process in waiting if not process.check()]
        if waiting and time.monotonic() > deadline:
            names = ", ".join(process.name for process in waiting)
            raise ProcessFailed(f"not ready after {timeout_s:.0f} s: {names}")
        time.sleep(_POLL_S)
