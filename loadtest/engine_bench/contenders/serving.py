"""A contender's side of the bench: JSON lines in on stdin, JSON lines out on stdout, an operation at a time.

Imports the standard library only: contenders may run under another environment's Python.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Operation = Callable[..., dict[str, Any]]

CLOCK_VARIABLE = "RYOKAN_BENCH_CLOCK"
"""`cpu`: seconds that this process has computed, which others on the same core don't prolong; else seconds passed."""


def clock() -> float:
    return time.process_time() if os.environ.get(CLOCK_VARIABLE) == "cpu" else time.perf_counter()


def serve(load: Callable[[], Mapping[str, Operation]], package: str) -> None:
    """Loads, says `{"ready": true, "version": …}`, then answers until stdin ends. A request is `{"op": NAME, …}`, the
    rest being the operation's arguments. An error ends the process, and its last line on stderr is the reason."""
    answers = _own_stdout()
    operations = load()
    _say(answers, {"ready": True, "version": _version(package)})
    for line in sys.stdin:
        request = json.loads(line)
        _say(answers, operations[request.pop("op")](**request))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not a package"


def _own_stdout() -> int:
    """Libraries print to stdout, some of them from C: what they say goes to stderr instead."""
    own = os.dup(1)
    os.dup2(2, 1)
    return own


def _say(answers: int, value: Mapping[str, Any]) -> None:
    os.write(answers, json.dumps(value).encode() + b"\n")
