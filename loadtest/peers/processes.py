"""Child processes: started, watched, ended; and the CPU time of one with all its descendants. Linux only."""

import contextlib
import os
import re
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtest.peers.errors import PeersError

_STOP_LIMIT_S = 10.0
_LAST_LINES = 5
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Child:
    def __init__(self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raises PeersError where it has ended."""
        if self._process.poll() is not None:
            lines = self._said().strip().splitlines()[-_LAST_LINES:]
            raise PeersError(f"{self.name} ended with status {self._process.returncode}: {' / '.join(lines)}")

    def find(self, pattern: str) -> str | None:
        """The first group of a line that it has said."""
        found = re.search(pattern, self._said())
        return found.group(1) if found else None

    def cpu_s(self) -> float:
        return cpu_seconds(self._process.pid)

    def stop(self) -> None:
        """SIGTERM first. What is left of its session is killed: some routers leave helpers behind."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _said(self) -> str:
        return self._log.read_text(errors="replace")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_seconds(root: int, proc: Path = Path("/proc")) -> float:
    """User and system time of `root` and all its descendants that are alive, and of children that have ended."""
    found: dict[int, tuple[int, float]] = {}
    for stat in proc.glob("[0-9]*/stat"):
        try:
            parsed = parse_stat(stat.read_text())
        except OSError:
            continue
        found[int(stat.parent.name)] = parsed
    total, tree = 0.0, {root}
    while tree:
        total += sum(found[pid][1] for pid in tree if pid in found)
        tree = {pid for pid, (parent, _) in found.items() if parent in tree}
    return total


def parse_stat(line: str) -> tuple[int, float]:
    """The parent's id and CPU seconds, of a line of /proc/PID/stat: a command's name may hold spaces and brackets."""
    fields = line.rpartition(")")[2].split()
    return int(fields[1]), sum(map(int, fields[11:15])) / _TICKS_PER_S
