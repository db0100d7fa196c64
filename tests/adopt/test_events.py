"""Events as they come over the wire: shapes seen from real engines, and nonsense."""

from typing import Any

import msgspec
import pytest

from adopt.events import Cleared, EventError, Removed, Stored, decode_batch
from replica.protocol.hashing import pack_tokens
from tests.adopt.fakes import encode

TOKENS = list(range(16))

VLLM_026 = {
    "type": "BlockStored",
    "block_hashes": [15760518052499183552],
    "parent_block_hash": None,
    "token_ids": TOKENS,
    "block_size": 16,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
}
"""From a report about vLLM 0.26."""


def one(event: Any) -> Any:
    [decoded] = decode_batch(encode([event])).events
    return decoded


def test_a_map_from_vllm() -> None:
    assert one(VLLM_026) == Stored((15760518052499183552,), None, pack_tokens(TOKENS), "", 1, 0, True)


def test_arrays_from_older_engines() -> None:
    batch = decode_batch(encode([["BlockStored", [b"a"], b"p", TOKENS, 16, None, "GPU"]], rank=None))
    assert batch.events == (Stored((b"a",), b"p", pack_tokens(TOKENS), "", 1, None, True),)
    assert batch.rank == 0
    assert not batch.tells_salts
    with_extras = ["BlockStored", [b"a"], None, TOKENS, 16, None, "GPU", None, [["salt"]]]
    assert one(with_extras).salt == "salt"
    assert decode_batch(encode([with_extras])).tells_salts
    assert one(["BlockRemoved", [-5, 6], "GPU"]) == Removed((-5, 6), None)
    assert one(["AllBlocksCleared"]) == Cleared()


def test_a_batch_without_a_rank() -> None:
    assert decode_batch(msgspec.msgpack.encode([1.5, []])).rank == 0


def test_pairs_of_tokens_are_no_text() -> None:
    assert one(VLLM_026 | {"token_ids": [[1, 2]] * 16}).plain == 0


def test_what_isnt_about_the_engines_own_memory_is_left_out() -> None:
    batch = [
        VLLM_026 | {"medium": "STORAGE"},
        VLLM_026 | {"locality": "REMOTE"},
        {"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU"},
        {"type": "LoadStat", "running": 3},
        ["SomethingNew", 1],
    ]
    assert decode_batch(encode(batch)).events == ()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        msgspec.msgpack.encode({"ts": 1}),
        msgspec.msgpack.encode([1.5]),
        encode([7]),
        encode([{}]),
        encode([VLLM_026 | {"block_hashes": None}]),
        encode([VLLM_026 | {"block_hashes": ["text"]}]),
        encode([VLLM_026 | {"parent_block_hash": "text"}]),
        encode([VLLM_026 | {"token_ids": None}]),
        encode([VLLM_026 | {"block_size": 0}]),
        encode([VLLM_026 | {"group_idx": "x"}]),
    ],
)
def test_nonsense_is_an_error(payload: bytes) -> None:
    with pytest.raises(EventError):
        decode_batch(payload)
