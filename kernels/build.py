"""Compiles `csrc/*.cpp` into one shared library, once, and loads it.

The library is plain C functions on raw pointers: it takes seconds to build where a torch extension takes a minute,
and ctypes drops the GIL while a kernel runs. It is cached under a hash of all that could change it, CPU included,
because `-march=native` code from another machine dies of an illegal instruction.
"""

import ctypes
import fcntl
import hashlib
import logging
import os
import platform
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "csrc"
# -ffp-contract=off: see vec.h. -fno-trapping-math lets comparisons and selects become vector instructions.
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC", "-Wno-psabi")
TIMEOUT_S = 300.0


class BuildError(RuntimeError):
    """The library can't be built or loaded here; the text says why."""


def load(march: str = "native") -> ctypes.CDLL:
    """Returns the library, built first if the cache lacks it. Raises BuildError."""
    compiler = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    flags = [*FLAGS, f"-march={march}"]
    try:
        path = _cache_folder() / f"{_fingerprint(compiler, flags)}.so"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with _lock(path.parent / "build.lock"):
                if not path.exists():
                    _build(compiler, flags, path)
        return _open(path)
    except subprocess.CalledProcessError as error:
        raise BuildError(f"{shlex.join(compiler)} failed:\n{error.stderr.strip()[-2000:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(str(error)) from error


def _open(path: Path) -> ctypes.CDLL:
    # Threads that wait must sleep: where another process has the second core, those that spin instead held up a
    # 0.6 ms kernel for 15 ms. OpenMP's runtime reads this once, when the library brings it in, so it is set only then.
    chosen = os.environ.get("OMP_WAIT_POLICY")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        return ctypes.CDLL(str(path))
    finally:
        if chosen is None:
            del os.environ["OMP_WAIT_POLICY"]


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Has replicas that start at once build once. It only spares work, so a file system without locks is no error."""
    with path.open("w") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _cache_folder() -> Path:
    root = os.environ.get("RYOKAN_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "ryokan") / "kernels"


def _fingerprint(compiler: list[str], flags: list[str]) -> str:
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
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


def _build(compiler: list[str], flags: list[str], path: Path) -> None:
    log.info("building the CPU kernels into %s", path)
    # The lock may be missing (see _lock), so each process builds a file of its own, and the rename is atomic.
    handle, temporary = tempfile.mkstemp(suffix=".so", prefix=".build-", dir=path.parent)
    os.close(handle)
    try:
        sources = [str(source) for source in sorted(SOURCES.glob("*.cpp"))]
        _run([*compiler, *flags, "-o", temporary, *sources])
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S).stdout
