"""A native function whose arguments lie in one block of memory: ctypes and libffi need 0.1 µs for each that they
convert, and a decision passes some forty."""

import ctypes
from array import array
from functools import partial
from struct import Struct
from typing import Protocol


class Call(Protocol):
    """Not safe to share between threads: there is one block."""

    def __call__(self, *arguments: float) -> int: ...


def with_block(function: "ctypes._NamedFuncPointer", fields: str) -> Call:
    """`fields`: of the block, in `struct`'s letters, 8 bytes each: Q an address, q an integer, d a real number."""
    layout = Struct(f"={fields}")
    assert layout.size == 8 * len(fields)
    # Without `argtypes`, which would have the block's address converted as well.
    function.restype = ctypes.c_long
    block = array("Q", bytes(layout.size))
    block_at = ctypes.c_void_p(block.buffer_info()[0])
    pack = partial(layout.pack_into, block, 0)

    # NOTE: not a method: an object with `__call__` takes half a microsecond more a call.
    def call(*arguments: float) -> int:
        pack(*arguments)
        returned: int = function(block_at)
        return returned

    return call
