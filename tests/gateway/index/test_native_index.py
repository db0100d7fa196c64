"""The native index beside the plain one, and what only it has: its memory and its table."""

import ctypes
from pathlib import Path
from random import Random

import pytest

from gateway.index.factory import make_index
from gateway.index.native_index import NativeIndex, load_library
from gateway.index.plain_index import PlainIndex
from gateway.index.prefix_index import SHARDS, Applied, Match, PrefixIndex
from replica.protocol.records import Delta, Snapshot, xor_root

MASK = 2**64 - 1


def native(seed: int = 0) -> NativeIndex:
    return NativeIndex(load_library(), seed)


class Caches:
    """Replicas whose caches are prefix-closed, and what they say of them. Paths share their beginnings."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        trunk = [rng.getrandbits(64) for _ in range(400)]
        self.paths = [trunk]
        for _ in range(9):
            parent = rng.choice(self.paths)
            branch = [rng.getrandbits(64) for _ in range(rng.randrange(1, 300))]
            self.paths.append(parent[: rng.randrange(300)] + branch)
        self.depths = {f"r{number}": [0] * len(self.paths) for number in range(12)}
        self.positions = {name: (f"{name}-0", 0) for name in self.depths}

    def held(self, name: str) -> set[int]:
        return {block for path, depth in zip(self.paths, self.depths[name], strict=True) for block in path[:depth]}

    def restart(self, name: str, step: int) -> None:
        self.depths[name] = [0] * len(self.paths)
        self.positions[name] = (f"{name}-{step}", 0)

    def next_delta(self, name: str) -> Delta:
        """Also names what isn't held and lies behind what is evicted, so that what is expected stays prefix-closed."""
        before, number = self.held(name), self.rng.randrange(len(self.paths))
        path = self.paths[number]
        self.depths[name][number] = self.rng.choice((0, self.rng.randrange(len(path) + 1), len(path)))
        held = self.held(name)
        removed = before - held
        for other in self.paths:
            end = next((n for n, block in enumerate(other) if block in removed), len(other))
            removed.update(set(other[end:]) - held)
        epoch, seq = self.positions[name]
        self.positions[name] = (epoch, seq + 1)
        added = held - before
        return Delta(name, epoch, seq + 1, tuple(added), tuple(removed), len(held), xor_root(held))


def one_operation(caches: Caches, indexes: list[PrefixIndex], step: int) -> None:
    rng, name = caches.rng, caches.rng.choice(list(caches.depths))
    kind = rng.random()
    if kind < 0.02:
        caches.restart(name, step)
    elif kind < 0.04:
        for index in indexes:
            index.drop(name)
    elif kind < 0.10:
        epoch, seq = caches.positions[name]
        held = tuple(caches.held(name))
        for index in indexes:
            assert index.load(name, Snapshot(epoch, seq, "0-0", held)) is Applied.OK
    elif kind < 0.25:
        path = rng.choice(caches.paths)
        path = path[: rng.randrange(len(path) + 1)]
        for index in indexes:
            index.expect(name, path)
    elif kind < 0.30:
        for index in indexes:
            index.sweep(SHARDS // 2)
            index.expire(step / 20)
    else:
        record = caches.next_delta(name)
        if rng.random() < 0.95:
            first, *others = [index.apply(record) for index in indexes]
            assert all(other is first for other in others)


def test_it_equals_the_plain_one_whatever_happens() -> None:
    seed = Random().getrandbits(32)
    print("seed", seed)
    caches = Caches(Random(seed))
    indexes: list[PrefixIndex] = [PlainIndex(), native(seed)]
    plain, fast = indexes
    for step in range(10_000):
        one_operation(caches, indexes, step)
        prompt = caches.rng.choice(caches.paths)
        assert fast.match(prompt) == plain.match(prompt), f"step {step}"
        if step % 100 == 0:
            assert fast.replicas() == plain.replicas()
            for name in plain.replicas():
                assert fast.hashes_of(name) == plain.hashes_of(name)
                assert fast.position(name) == plain.position(name) and fast.blocks(name) == plain.blocks(name)


def unmixed(mixed: int) -> int:
    """The hash that lands there with seed 0, whose first step changes nothing."""
    h = mixed ^ mixed >> 32
    h = h * pow(0xBF58476D1CE4E5B9, -1, 2**64) & MASK
    h ^= (h >> 29) ^ (h >> 58)
    h = h * pow(0x9E3779B97F4A7C15, -1, 2**64) & MASK
    return h ^ h >> 32


ADVERSARIAL = {
    "one home": [unmixed(number << 54 | 5 << 32 | 3) for number in range(900)],
    "one shard, homes at its end": [unmixed(number << 32 | 3) for number in range(MASK >> 32, (MASK >> 32) - 900, -1)],
    "equal low bits": [number << 44 for number in range(900)],
    "equal high bits": [MASK - number for number in range(900)],
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_hashes_that_were_chosen_to_collide(name: str) -> None:
    hashes = [*ADVERSARIAL[name], 0, MASK]
    hashes = list(dict.fromkeys(hashes))
    index, plain = native(0), PlainIndex()
    held: set[int] = set()
    rng = Random(name)
    for seq in range(1, 60):
        added = set(rng.sample(hashes, 200)) - held
        removed = set(rng.sample(sorted(held), len(held) // 3))
        held = held - removed | added
        record = Delta("a", "e", seq, tuple(added), tuple(removed), len(held), xor_root(held))
        assert index.apply(record) is plain.apply(record) is Applied.OK
        assert index.hashes_of("a") == held
        assert {block for block in hashes if index.match([block])} == held
    assert len(index) == len(held)


def test_the_collisions_are_real() -> None:
    index = native(0)
    index.load("a", Snapshot("e", 1, "0-0", tuple(ADVERSARIAL["one home"])))
    index.load("b", Snapshot("e", 1, "0-0", tuple(Random(1).getrandbits(64) for _ in range(900))))
    # One shard of 2048 places, and hardly any that has more than the least.
    assert index.bytes - native(0).bytes < 16 * (2048 + 16 * SHARDS)


def test_memory_is_given_back() -> None:
    index = native()
    empty = index.bytes
    rng = Random(1)
    for round_ in range(3):
        for number in range(10):
            path = tuple(rng.getrandbits(64) for _ in range(5000))
            index.load(f"r{number}", Snapshot(str(round_), 1, "0-0", path))
            index.expect(f"r{number}", path)
        assert index.bytes > empty + 50_000 * 16
        for number in range(10):
            index.drop(f"r{number}")
        index.sweep(2 * SHARDS)
        assert len(index) == 0
        assert index.bytes == empty


def test_memory_stays_level_under_unique_prompts_and_churn() -> None:
    """Caches of 2,000 blocks take in ten times as much, and every replica comes back with a new epoch, ten times."""
    index, rng = native(), Random(1)
    sizes = []
    for epoch in range(10):
        for number in range(20):
            prompts = [tuple(rng.getrandbits(64) for _ in range(200)) for _ in range(100)]
            root = 0
            for seq, prompt in enumerate(prompts, 1):
                evicted = prompts[seq - 11] if seq > 10 else ()
                root ^= xor_root(prompt) ^ xor_root(evicted)
                count = 200 * min(seq, 10)
                record = Delta(f"r{number}", str(epoch), seq, prompt, evicted, count, root)
                assert index.apply(record) is Applied.OK
        index.sweep(SHARDS)
        sizes.append(index.bytes)
    assert max(sizes[3:]) <= 1.1 * max(sizes[:3])
    assert len(index._replica_of) < 80


def test_a_long_prompt_is_searched_and_a_short_one_walked() -> None:
    path = list(range(6250))
    index = native()
    lengths = (1, 31, 32, 33, 34, 63, 64, 65, 66, 129, 4000, 6249, 6250)
    depths = {f"r{depth}": depth for depth in lengths}
    for replica, depth in depths.items():
        index.load(replica, Snapshot("e", 1, "0-0", tuple(path[:depth])))
    for count in (1, 2, 31, 32, 33, 34, 35, 64, 65, 66, 67, 128, 129, 5000, 6250):
        assert index.match(path[:count]) == {
            replica: Match(min(depth, count), min(depth, count)) for replica, depth in depths.items()
        }


def test_calls_keep_the_interpreter_lock() -> None:
    """Others can't run in the middle of one, and it needn't wait for them at its end."""
    assert type(load_library()) is ctypes.PyDLL


def test_without_a_compiler_the_plain_one_serves_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RYOKAN_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert isinstance(make_index(), PlainIndex)
    (record,) = caplog.records
    assert "no-such-compiler" in record.getMessage()


def test_with_one_the_native_one_serves() -> None:
    assert isinstance(make_index(), NativeIndex)
