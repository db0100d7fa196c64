"""A native function whose arguments lie in one block of memory: ctypes and libffi need 0.1 µs for each that they
convert, and a decision passes some forty."""

import ctypes
from array import array
from struct import Struct


class Call:
    """Not safe to share between threads: there is one block."""

    __slots__ = ("_block", "_block_at", "_function", "_pack")

    def __init__(self, function: "ctypes._NamedFuncPointer", fields: str) -> None:
        """`fields`: of the block, in `struct`'s letters, 8 bytes each: Q an address, q an integer, d a real number."""
        layout = Struct(f"={fields}")
        assert layout.size == 8 * len(fields)
        # Without `argtypes`, which would have the block's address converted as well.
        function.restype = ctypes.c_long
        self._function = function
        self._pack = layout.pack_into
        self._block = array("Q", bytes(layout.size))
        self._block_at = ctypes.c_void_p(self._block.buffer_info()[0])

    def __call__(self, *arguments: float) -> int:
        self._pack(self._block, 0, *arguments)
        returned: int = self._function(self._block_at)
        return returned
