"""Chained block hashes of a prompt.

`h_i = XXH3_64(h_{i-1} as little-endian u64 ‖ the block's tokens as little-endian u32)`; the parent of the first block
is the hash of a namespace. The hash only steers requests: replicas compare the tokens themselves before they reuse KV.
"""

import sys
from array import array
from collections.abc import Sequence

import xxhash

BLOCK_SIZE = 16
"""Tokens in a KV block."""

HASH_VERSION = 1

_U32 = 4


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian u32, 4 bytes a token. Raises OverflowError for an id outside u32."""
    packed = array("I", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def namespace_hash(*, model: str, tokenizer: str, adapter: str = "", salt: str = "") -> int:
    """The parent of a first block. Every part carries its name and length, so no two tuples encode alike."""
    digest = xxhash.xxh3_64()
    parts = {"version": str(HASH_VERSION), "model": model, "tokenizer": tokenizer, "adapter": adapter, "salt": salt}
    for name, value in parts.items():
        data = value.encode()
        digest.update(f"{name}:{len(data)}:".encode())
        digest.update(data)
    return digest.intdigest()


def block_hashes(tokens: Sequence[int], namespace: int) -> list[int]:
    """The hash of each whole block of `tokens`, in order; a last partial block has none."""
    packed = pack_tokens(tokens)
    step = BLOCK_SIZE * _U32
    hashes = []
    parent = namespace
    for start in range(0, len(packed) - step + 1, step):
        parent = child_hash(parent, packed[start : start + step])
        hashes.append(parent)
    return hashes


def child_hash(parent: int, packed_block: bytes) -> int:
    """The hash of one block, whose tokens are packed by `pack_tokens`, after `parent`."""
    return xxhash.xxh3_64_intdigest(parent.to_bytes(8, "little") + packed_block)
