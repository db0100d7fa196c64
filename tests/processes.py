"""Real processes for tests: started, waited for, ended by id."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent


def spare_port() -> int:
    """Free, and nobody else's soon: for a server that goes and comes back. Embedded servers count up from 16379, and
    the system gives out ports from 32768 on."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


class Process:
    """A `python -m …` of ours, with what it says."""

    def __init__(self, arguments: Sequence[str], log: Path, env: dict[str, str] | None = None) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | (env or {}),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, pattern: str, timeout_s: float = 300) -> str:
        """The first group of a line that it says."""
        deadline = time.monotonic() + timeout_s
        while not (found := re.search(pattern, self.said)):
            assert self._process.poll() is None, f"ended with {self._process.returncode}: {self.said}"
            assert time.monotonic() < deadline, f"never said {pattern!r}: {self.said}"
            time.sleep(0.02)
        return found.group(1)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, timeout_s: float = 120) -> int:
        return self._process.wait(timeout_s)

    def stop(self) -> int:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def run_command(*arguments: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def eventually(check: Callable[[], object], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)
