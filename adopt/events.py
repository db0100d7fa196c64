"""The KV events of vLLM and SGLang, from msgpack. Pure.

A batch is an array `[timestamp, events, data-parallel rank]`. An event is a map with a `type`, or, in vLLM before
June 2026 (vllm#42892) and in older SGLangs, an array that begins with it; fields that have their default value may be
left out, in arrays at the end.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from replica.protocol.hashing import pack_tokens

Key = bytes | int
"""The engine's own name of a block: a hash, chained over all tokens before it. vLLM's are bytes or unsigned, SGLang's
signed 64-bit numbers."""

_STORED = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
)
_REMOVED = ("block_hashes", "medium")
_ARRAY_FIELDS = {"BlockStored": _STORED, "BlockRemoved": _REMOVED, "AllBlocksCleared": ()}

_WHOLE_PREFIX_KINDS = (None, "full_attention", "mla_attention", "sink_full_attention")
"""Groups of layers that keep a prompt's every block. A sliding window's go early; a state has none."""


class EventError(ValueError):
    """A message that can't be understood, so what the engine holds is no longer known."""


@dataclass(frozen=True, slots=True)
class Stored:
    keys: tuple[Key, ...]
    """One for each block, in a row: each is the next one's parent."""
    parent: Key | None
    """None: the first block begins the prompt."""
    packed: bytes
    """Token ids of all these blocks, as `pack_tokens` gives them."""
    salt: str
    """Of a prompt's first block: only requests of the same salt share it."""
    plain: int
    """So many of the blocks are the text's alone; those after them depend on something that no prompt names to us:
    an adapter, an image."""
    group: int | None
    whole_prefix: bool
    """Its group of layers keeps whole prefixes."""


@dataclass(frozen=True, slots=True)
class Removed:
    keys: tuple[Key, ...]
    group: int | None


@dataclass(frozen=True, slots=True)
class Cleared:
    pass


Event = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Batch:
    rank: int
    """Data-parallel; each rank has a cache of its own."""
    events: tuple[Event, ...]
    tells_salts: bool
    """False where it shows that the engine keeps silent about salts, so that blocks of one look like anybody's."""


def decode_batch(payload: bytes) -> Batch:
    """Events about other tiers than the engine's own memory, and of unknown types, are left out. Raises EventError."""
    try:
        value = msgspec.msgpack.decode(payload)
    except msgspec.DecodeError as error:
        raise EventError(f"no msgpack: {error}") from error
    if not isinstance(value, list) or len(value) < 2 or not isinstance(value[1], list):
        raise EventError("a batch must be an array of a time and events")
    rank = value[2] if len(value) > 2 else None
    named = [_fields(event) for event in value[1]]
    events = (_event(kind, fields) for kind, fields in named)
    return Batch(
        rank if isinstance(rank, int) else 0,
        tuple(event for event in events if event is not None),
        all(fields.get("_tells_salts", True) for _, fields in named),
    )


def _fields(event: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(event, dict) and isinstance(event.get("type"), str):
        return event["type"], event
    if isinstance(event, list) and event and isinstance(event[0], str):
        names = _ARRAY_FIELDS.get(event[0], ())
        fields = dict(zip(names, event[1:], strict=False))
        if event[0] == "BlockStored":
            fields["_tells_salts"] = "extra_keys" in fields
        return event[0], fields
    raise EventError("an event must be a map with a type, or an array that begins with it")


def _event(kind: str, fields: Mapping[str, Any]) -> Event | None:
    if kind == "AllBlocksCleared":
        return Cleared()
    if kind not in ("BlockStored", "BlockRemoved"):
        return None
    if fields.get("medium") not in (None, "GPU") or fields.get("locality") == "REMOTE":
        # NOTE: vLLM says "GPU" of an engine's own memory on CPUs too.
        return None
    keys = fields.get("block_hashes")
    if not isinstance(keys, list) or not all(isinstance(key, bytes | int) for key in keys):
        raise EventError(f"{kind}: block_hashes must be an array of byte strings or numbers")
    group = fields.get("group_idx")
    if group is not None and not isinstance(group, int):
        raise EventError(f"{kind}: group_idx must be a number")
    return Removed(tuple(keys), group) if kind == "BlockRemoved" else _stored(keys, group, fields)


def _stored(keys: list[Key], group: int | None, fields: Mapping[str, Any]) -> Stored:
    parent, tokens, size = fields.get("parent_block_hash"), fields.get("token_ids"), fields.get("block_size")
    if parent is not None and not isinstance(parent, bytes | int):
        raise EventError("BlockStored: parent_block_hash must be a byte string or a number")
    if not isinstance(tokens, list) or not isinstance(size, int) or size < 1:
        raise EventError("BlockStored: needs token_ids and a block_size")
    salt, plain = _namespace(len(keys), parent, fields)
    packed = b""
    try:
        packed = pack_tokens(tokens)
    except (TypeError, OverflowError):
        # Pairs of tokens, in SGLang's speculative decoding: blocks of something else than the prompt.
        plain = 0
    if len(tokens) != len(keys) * size:
        # Sliding windows and states leave blocks out, so whose the tokens are isn't told.
        plain = 0
    kind = fields.get("kv_cache_spec_kind")
    return Stored(tuple(keys), parent, packed if plain else b"", salt, plain, group, kind in _WHOLE_PREFIX_KINDS)


def _namespace(count: int, parent: Key | None, fields: Mapping[str, Any]) -> tuple[str, int]:
    """The salt, and how many blocks depend on nothing but that and the text."""
    if fields.get("lora_id") is not None or fields.get("lora_name") is not None:
        return "", 0
    salt = fields.get("cache_salt") or ""
    extras = fields.get("extra_keys") or []
    if not isinstance(salt, str) or not isinstance(extras, list):
        return "", 0
    for index, extra in enumerate(extras[:count]):
        if not extra:
            continue
        # vLLM gives the salt with a prompt's first block, as the one string among its extra keys.
        if index == 0 and parent is None and len(extra) == 1 and isinstance(extra[0], str):
            salt = extra[0]
        else:
            return salt, index
    return salt, count
