import random
import subprocess
import sys

import xxhash

from replica.protocol.hashing import block_hashes, chain_of, child_hash, namespace_hash, pack_tokens

NAMESPACE = namespace_hash(model="m", tokenizer="t")


def test_a_hash_is_xxh3_of_parent_and_tokens() -> None:
    tokens = list(range(32))
    first = xxhash.xxh3_64_intdigest(
        NAMESPACE.to_bytes(8, "little") + b"".join(t.to_bytes(4, "little") for t in tokens[:16])
    )
    second = xxhash.xxh3_64_intdigest(
        first.to_bytes(8, "little") + b"".join(t.to_bytes(4, "little") for t in tokens[16:])
    )
    assert block_hashes(tokens, NAMESPACE) == [first, second]


def test_only_whole_blocks_are_hashed() -> None:
    assert [len(block_hashes(range(n), NAMESPACE)) for n in (0, 1, 15, 16, 17, 31, 32)] == [0, 0, 0, 1, 1, 1, 2]


def test_equal_prefixes_share_hashes_up_to_where_they_part(seed: int) -> None:
    rng = random.Random(seed)
    common = [rng.randrange(50_000) for _ in range(64)]
    a = block_hashes([*common, 1, *range(31)], NAMESPACE)
    b = block_hashes([*common, 2, *range(31)], NAMESPACE)
    assert a[:4] == b[:4]
    # After the first difference all hashes differ, though the later blocks hold the same tokens.
    assert not set(a[4:]) & set(b[4:])


def test_namespaces_never_encode_alike() -> None:
    tuples = [
        {"model": "ab", "tokenizer": "c"},
        {"model": "a", "tokenizer": "bc"},
        {"model": "ab", "tokenizer": "c", "adapter": "x"},
        {"model": "ab", "tokenizer": "c", "salt": "x"},
    ]
    assert len({namespace_hash(**parts) for parts in tuples}) == len(tuples)


def test_hashes_agree_between_processes() -> None:
    code = (
        "from replica.protocol.hashing import *;"
        "print(block_hashes(range(48), namespace_hash(model='m', tokenizer='t')))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert outputs == {f"{block_hashes(range(48), NAMESPACE)}\n"}


def test_child_hash_is_one_step_of_the_chain() -> None:
    tokens = list(range(100, 132))
    first, second = block_hashes(tokens, NAMESPACE)
    assert child_hash(first, pack_tokens(tokens[16:])) == second


def test_d09_public_blocks_are_the_same_for_all_and_no_others_are(seed: int) -> None:
    rng = random.Random(seed)

    def namespace(salt: str | None) -> int:
        return namespace_hash(model="m", tokenizer="t", salt=salt or "")

    for _ in range(200):
        tokens = [rng.randrange(1000) for _ in range(rng.randrange(1, 130))]
        public = rng.randrange(len(tokens) + 1)
        a, b, nobody = (block_hashes(tokens, *chain_of(namespace, salt, public)) for salt in ("a", "b", None))
        shared = public // 16
        assert a[:shared] == b[:shared] == nobody[:shared] == block_hashes(tokens, namespace(None))[:shared]
        assert len(a) == len(b) == len(tokens) // 16
        assert len({*a[shared:], *b[shared:], *nobody[shared:]}) == 3 * (len(tokens) // 16 - shared)


def test_d09_without_public_blocks_a_chain_begins_with_the_tenant() -> None:
    def namespace(salt: str | None) -> int:
        return namespace_hash(model="m", tokenizer="t", salt=salt or "")

    assert [chain_of(namespace, "a", public) for public in (0, 15)] == [(namespace("a"), None)] * 2
    assert chain_of(namespace, None, 64) == (namespace(None), None)
