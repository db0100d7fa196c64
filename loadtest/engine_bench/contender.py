"""The bench's side of a contender: a child process that computes when asked, on one core."""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.engine_bench.contenders.serving import CLOCK_VARIABLE
from loadtest.engine_bench.errors import BenchError, ContenderFailed

_START_LIMIT_S = 1200.0
"""vLLM compiles the model when it first meets it: 4 minutes on a busy machine."""
_ANSWER_LIMIT_S = 600.0
_STOP_LIMIT_S = 20.0
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_PACKAGES = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class ContenderSpec:
    name: str
    program: str
    """Module below `contenders`."""
    arguments: tuple[str, ...]
    python: str
    is_peer: bool
    """Runs in an environment of its own, which may hold other versions of everything: it sees no package of ours but
    this one."""


def peer_python(flag: str, given: Path | None, package: str) -> str | None:
    """The interpreter that has `package`: the one given, or else our own, or None. Raises BenchError."""
    if given is not None:
        if not os.access(given, os.X_OK) or given.is_dir():
            raise BenchError(f"{flag}: {given} is no program")
        # Not resolved: an environment's Python is a link, and finds its packages by where the link lies.
        return str(given.absolute())
    return sys.executable if importlib.util.find_spec(package) is not None else None


class Contender:
    """Started at once; `close` it in any case."""

    def __init__(self, spec: ContenderSpec, core: int | None, logs: Path, cpu_time: bool = False) -> None:
        """Raises ContenderFailed."""
        self.name = spec.name
        self._log = logs / f"{spec.name}.log"
        pin: Callable[[], None] | None = None if core is None else partial(os.sched_setaffinity, 0, {core})
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [spec.python, "-m", f"loadtest.engine_bench.contenders.{spec.program}", *spec.arguments],
                cwd=_alone(logs) if spec.is_peer else _PACKAGES,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | _ONE_THREAD | {CLOCK_VARIABLE: "cpu" if cpu_time else "wall"},
                preexec_fn=pin,
            )
        try:
            self.version: str = self._read(_START_LIMIT_S)["version"]
        except BaseException:
            self.close()
            raise

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Raises ContenderFailed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise ContenderFailed(f"{self.name} has ended: {self._last_words()}") from error
        return self._read(_ANSWER_LIMIT_S)

    def close(self) -> None:
        """It ends when its input does."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        # What a dead one was asked may still lie in the buffer.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _read(self, limit_s: float) -> dict[str, Any]:
        process = self._process
        assert process.stdout is not None
        timer = threading.Timer(limit_s, process.kill)
        timer.start()
        try:
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise ContenderFailed(f"{self.name} has ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'it said nothing'} (log: {self._log})"


def _alone(logs: Path) -> Path:
    """A folder with a link to our load tests and nothing else, for `python -m`."""
    folder = Path(tempfile.mkdtemp(dir=logs))
    (folder / "loadtest").symlink_to(_PACKAGES / "loadtest")
    return folder
