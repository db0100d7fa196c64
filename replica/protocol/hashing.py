"""Chained block hashes of a prompt.

`h_i = XXH3_64(h_{i-1} as little-endian u64 ‖ the block's tokens as little-endian u32)`; the parent of the first block
is the hash of a namespace. The hash only steers requests: replicas compare the tokens themselves before they reuse KV.

A prompt may begin with blocks that are public and go on with those of a tenant. Then its chain begins in the namespace
without a salt, and the first block that is the tenant's own has the tenant's namespace behind its tokens: so all
tenants meet in the public blocks and nowhere else.
"""

import sys
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

import xxhash

BLOCK_SIZE = 16
"""Tokens in a KV block."""

HASH_VERSION = 1

_U32 = 4


class Fork(NamedTuple):
    """Where a chain that began in public becomes a tenant's own."""

    block: int
    """Index of the first block that is."""
    tag: bytes
    """Stands behind that block's tokens, in its hash and in the key by which a replica finds it."""


def chain_of(namespace: Callable[[str | None], int], salt: str | None, public_tokens: int) -> tuple[int, Fork | None]:
    """Namespace of a prompt's first block, and the fork, for one whose first tokens are public. `namespace` is by
    salt."""
    public_blocks = public_tokens // BLOCK_SIZE
    if salt is None or public_blocks == 0:
        return namespace(salt), None
    return namespace(None), Fork(public_blocks, namespace(salt).to_bytes(8, "little"))


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


def block_hashes(tokens: Sequence[int], namespace: int, fork: Fork | None = None) -> list[int]:
    """The hash of each whole block of `tokens`, in order; a last partial block has none."""
    packed = pack_tokens(tokens)
    step = BLOCK_SIZE * _U32
    if fork is not None:
        return _forked_hashes(packed, step, namespace, fork)
    hashes = []
    parent = namespace
    for start in range(0, len(packed) - step + 1, step):
        parent = child_hash(parent, packed[start : start + step])
        hashes.append(parent)
    return hashes


def _forked_hashes(packed: bytes, step: int, namespace: int, fork: Fork) -> list[int]:
    hashes = []
    parent = namespace
    for index in range(len(packed) // step):
        block = packed[index * step : (index + 1) * step]
        parent = child_hash(parent, block + fork.tag if index == fork.block else block)
        hashes.append(parent)
    return hashes


def child_hash(parent: int, packed_block: bytes) -> int:
    """The hash of one block, whose tokens are packed by `pack_tokens`, after `parent`."""
    return xxhash.xxh3_64_intdigest(parent.to_bytes(8, "little") + packed_block)
