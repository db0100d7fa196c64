"""Token ids in the two forms in which they are needed: packed, to be hashed, and as JSON, to be sent. Pure."""

import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import orjson

from replica.protocol.hashing import pack_tokens

_BYTES = 4


# Not frozen, as it is made for each prompt: to make one would take three times as long.
@dataclass(slots=True)
class TokenIds:
    packed: bytes
    """By `pack_tokens`."""
    json: bytes
    """Separated by commas, without brackets."""

    @classmethod
    def of(cls, tokens: Sequence[int]) -> "TokenIds":
        # NOTE: a slice is a copy, as it has to be: orjson's own result keeps the 32 KiB that it was written into.
        return cls(pack_tokens(tokens), orjson.dumps(tokens)[1:-1])

    @classmethod
    def joined(cls, parts: Iterable["TokenIds"]) -> "TokenIds":
        packed, json = [], []
        for part in parts:
            if part.packed:
                packed.append(part.packed)
                json.append(part.json)
        return cls(b"".join(packed), b",".join(json))

    def __len__(self) -> int:
        return len(self.packed) // _BYTES

    @property
    def tokens(self) -> list[int]:
        ids = array("I", self.packed)
        if sys.byteorder == "big":
            ids.byteswap()
        return ids.tolist()
