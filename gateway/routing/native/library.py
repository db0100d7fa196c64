"""Decisions in C++ (`csrc/`), through ctypes: what numpy does in some sixty calls on short arrays is one call here.

Only an accelerator: all that it computes is also written in numpy, which is the oracle in tests, and what serves where
nothing can be compiled. Memory is passed by address; see `Candidates.address` and FleetTable.
"""

import ctypes
import logging
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from struct import Struct

from gateway.routing.candidates import COLUMNS, ROWS, SIZES
from native.build import BuildError, build_library
from native.call import with_block
from replica.protocol.hashing import BLOCK_SIZE

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "csrc"

GATES = ("ready", "max_context", "beat_at", "tripped_at", "closed_until", "warm_at", "leases")
"""What says whether a replica may be chosen: see gateway/fleet.py."""
BACKLOG = ("level", "as_of", "floor", "bound", "tokens_per_s")
"""Of its queue: see gateway/backlog.py."""

TABLE = (*ROWS[len(ROWS) - len(COLUMNS) - 2 * SIZES - 1 :], *GATES, *BACKLOG)
"""What the fleet's table has of a replica, in order: first what candidates get as it is."""

TTFT_TERMS = (
    *("queue_s", "place_s", "prefill_s", "shared_s", "delay_s", "compute_s", "kv_s", "eviction_s"),
    *("cost", "cached_tokens"),
)
"""Of each candidate, a row each: see ttft.py."""

SURVEY: tuple[str, ...] = ("mine_s", "my_credited", "most_cached", "my_cached")
SURVEY += ("with_most_cached", "with_most_cached_s", "most_held", "with_most_held", "with_most_held_s")
SURVEY += ("other", "other_s")
"""See survey.py."""
SURVEY_FORMAT = Struct("=2d3qd2qdqd")
"""Of these numbers, 8 bytes each."""

CHOICE = ("cached", "held", "predicted_s")
"""What a decision says of its choice: tokens, and the wait for the first one."""
CHOICE_FORMAT = Struct("=2qd")

PICK = ("deepest", "owners", "most_held", "queued", "idle", "tokens_per_s")
"""Of the candidates: see Figures."""

# No fused multiply-add: it rounds differently from numpy, and so breaks ties that it doesn't.
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC", f"-DSIZES={SIZES}")

_POINTER, _BYTES, _SIZE, _DOUBLE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_long, ctypes.c_double
_U64 = ctypes.c_uint64


class Library:
    """The functions; each releases nothing and keeps the GIL, as it takes microseconds."""

    def __init__(self, loaded: ctypes.PyDLL) -> None:
        def function(name: str, result: type | None, *arguments: type) -> "ctypes._NamedFuncPointer":
            found: ctypes._NamedFuncPointer = getattr(loaded, name)
            found.restype, found.argtypes = result, list(arguments)
            return found

        # What each request calls takes a block: see routing.cpp for what is in it.
        self.pick = with_block(loaded.pick, "QqdqdQqQqQQQQQ")
        """See pick.h; returns how many candidates there are."""
        self.ttft = with_block(loaded.ttft, "QqddqQQQ")
        """See ttft.h and survey.h; returns the place of the choice."""
        self.ttft_placed = with_block(loaded.ttft_placed, "QQqd")
        self.survey = function("survey", None, _POINTER, _SIZE, _DOUBLE, _SIZE, _POINTER)
        self.wait_of = function("wait_of", _DOUBLE, _POINTER, _SIZE, _DOUBLE, _SIZE, _DOUBLE)
        """Of one candidate: see wait.h."""
        self.early = function("early", _DOUBLE, _POINTER, _SIZE, _DOUBLE, _SIZE)
        """Likewise: see early.h."""
        self.block_hashes = function("block_hashes", None, _BYTES, _SIZE, _U64, _SIZE, _U64, _POINTER)
        """See chain.h."""
        self.seen_add = with_block(loaded.seen_add, "QQQq")
        self.seen_depth = with_block(loaded.seen_depth, "QQQq")


def load_library() -> Library:
    """Builds it first where the cache lacks it. Raises BuildError."""
    if sys.byteorder != "little":
        raise BuildError("hashes are packed in another byte order than this machine's")
    path = build_library("routing", SOURCES, (*FLAGS, f"-DBLOCK={BLOCK_SIZE}", *_names()))
    try:
        return Library(ctypes.PyDLL(str(path)))
    except OSError as error:
        raise BuildError(str(error)) from error


@cache
def the_library() -> Library | None:
    """The same for all that decide in this process; None where it can't be built, which is said once."""
    try:
        return load_library()
    except BuildError as error:
        log.warning("decisions run in numpy, several times slower: the native ones can't be built (%s)", error)
        return None


def _names() -> list[str]:
    lists = {"ROW": ROWS, "TABLE": TABLE, "TERM": TTFT_TERMS, "SURVEY": SURVEY, "CHOICE": CHOICE, "PICK": PICK}
    return [f"-D{name}_NAMES={_enumerated(name, names)}" for name, names in lists.items()]


def _enumerated(prefix: str, names: Sequence[str]) -> str:
    return ",".join(f"{prefix}_{name}" for name in (*names, "END"))
