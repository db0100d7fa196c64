"""Compiles C++ sources into a shared library, once, and gives the path to it.

The libraries are plain C functions on raw pointers, for ctypes: they take seconds to build where a torch extension
takes a minute. They are cached under a hash of all that could change them, CPU included, because `-march=native` code
from another machine dies of an illegal instruction. This imports nothing heavy: the gateway uses it too.
"""

import fcntl
import hashlib
import logging
import os
import platform
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger(__name__)

TIMEOUT_S = 300.0


class BuildError(RuntimeError):
    """The library can't be built or loaded here; the text says why."""


def build_library(name: str, sources: Path, flags: Sequence[str]) -> Path:
    """The library of the `*.cpp` in that folder, built first if the cache lacks it. Raises BuildError."""
    compiler = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    try:
        path = _cache_folder() / name / f"{_fingerprint(compiler, sources, flags)}.so"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with _lock(path.parent / "build.lock"):
                if not path.exists():
                    _build([*compiler, *flags], sources, path)
        return path
    except subprocess.CalledProcessError as error:
        raise BuildError(f"{shlex.join(compiler)} failed:\n{error.stderr.strip()[-2000:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(str(error)) from error


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Has processes that start at once build once. It only spares work, so a file system without locks is no error."""
    with path.open("w") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _cache_folder() -> Path:
    root = os.environ.get("RYOKAN_CACHE")
    return Path(root) if root else Path.home() / ".cache" / "ryokan"


def _fingerprint(compiler: Sequence[str], sources: Path, flags: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for source in sorted(sources.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    for part in (*compiler, *flags, _run([*compiler, "--version"]), _cpu()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:24]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    # "Features" is ARM's name for "flags". Only the first core's lines: frequencies differ and don't matter.
    wanted = ("model name", "flags", "Features")
    return "\n".join(dict((line.split(":")[0], line) for line in reversed(lines) if line.startswith(wanted)).values())


def _build(command: Sequence[str], sources: Path, path: Path) -> None:
    log.info("building %s", path)
    # The lock may be missing (see _lock), so each process builds a file of its own, and the rename is atomic.
    handle, temporary = tempfile.mkstemp(suffix=".so", prefix=".build-", dir=path.parent)
    os.close(handle)
    try:
        _run([*command, "-o", temporary, *(str(source) for source in sorted(sources.glob("*.cpp")))])
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _run(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S).stdout
