"""The library of `csrc/*.cpp`. ctypes drops the GIL while a kernel runs."""

import ctypes
import os
from pathlib import Path

from native.build import BuildError, build_library

SOURCES = Path(__file__).parent / "csrc"
# -ffp-contract=off: see vec.h. -fno-trapping-math lets comparisons and selects become vector instructions.
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC", "-Wno-psabi")


def load(march: str = "native") -> ctypes.CDLL:
    """Returns the library, built first if the cache lacks it. Raises BuildError."""
    path = build_library("kernels", SOURCES, [*FLAGS, f"-march={march}"])
    # Threads that wait must sleep: where another process has the second core, those that spin instead held up a
    # 0.6 ms kernel for 15 ms. OpenMP's runtime reads this once, when the library brings it in, so it is set only then.
    chosen = os.environ.get("OMP_WAIT_POLICY")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(str(error)) from error
    finally:
        if chosen is None:
            del os.environ["OMP_WAIT_POLICY"]
