"""The mirror against a plain model of an engine: what is held, by definition."""

import random
from collections import Counter
from typing import Any

import pytest

from adopt.events import decode_batch
from adopt.mirror import Mirror
from replica.protocol.hashing import BLOCK_SIZE, block_hashes
from tests.adopt.fakes import WIRES, Path, Wire, encode, name_signed

NAMESPACES = {"": 1, "salt": 2}


def mirror() -> Mirror:
    return Mirror(NAMESPACES.__getitem__)


def apply(subject: Mirror, *events: object) -> None:
    subject.apply(decode_batch(encode(events)).events)


def path(length: int, start: int = 0) -> Path:
    return tuple(range(start, start + length))


def ours(tokens: Path, salt: str = "") -> set[int]:
    return set(block_hashes(tokens, NAMESPACES[salt]))


class Model:
    """What an engine holds: paths of tokens, each so many times."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.copies: Counter[Path] = Counter()

    @property
    def held(self) -> set[int]:
        """Our blocks below whose end every engine block is held."""
        held: set[int] = set()
        for tokens in self.copies:
            if all(self.copies[tokens[:end]] for end in range(self.size, len(tokens) + 1, self.size)):
                held |= ours(tokens)
        return held

    def remove(self, tokens: Path) -> None:
        self.copies[tokens] -= 1
        self.copies += Counter()


@pytest.mark.parametrize("size", [1, 4, 8, 16, 24, 32, 40, 128])
@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
def test_random_events_leave_what_a_plain_model_holds(wire: Wire, size: int, seed: int) -> None:
    rng = random.Random(seed)
    model, subject, told = Model(size), mirror(), set[int]()
    trunks = [[rng.randrange(50_000) for _ in range(4 * max(size, 16))] for _ in range(3)]
    for _ in range(300):
        if rng.random() < 0.01:
            model.copies.clear()
            apply(subject, wire.cleared())
        elif rng.random() < 0.55:
            # A trunk's beginning, with one of few ends: prefixes are shared, and blocks come before their parents.
            tokens = (*rng.choice(trunks)[: rng.randrange(3) * size], *[rng.randrange(2)] * (2 * size))
            depth = len(tokens) // size
            count = rng.randint(1, depth)
            tokens = tokens[: rng.randint(count, depth) * size]
            for end in range(len(tokens) - (count - 1) * size, len(tokens) + 1, size):
                model.copies[tokens[:end]] += 1
            apply(subject, wire.stored(tokens, size, count))
        elif model.copies:
            gone = rng.choice(sorted(model.copies))
            model.remove(gone)
            apply(subject, wire.removed(gone, (-1,)))
        if rng.random() < 0.5:
            continue
        changes = subject.take_changes()
        told = set() if changes.cleared else told
        assert not set(changes.added) & told
        assert set(changes.removed) <= told
        told = (told - set(changes.removed)) | set(changes.added)
        assert told == subject.held == model.held
    for tokens in sorted(model.copies.elements()):
        apply(subject, wire.removed(tokens))
    assert not subject.held
    assert not subject.num_nodes


def test_one_engine_block_is_several_of_ours() -> None:
    subject = mirror()
    apply(subject, Wire().stored(path(256), 128, 2))
    assert subject.held == ours(path(256))
    assert subject.match(block_hashes(path(300), 1)) == 16
    apply(subject, Wire().removed(path(256)))
    assert subject.held == ours(path(128))


def test_pages_of_one_token_make_a_block_when_all_are_there() -> None:
    subject = mirror()
    apply(subject, *[Wire().stored(path(end), 1) for end in range(1, 16)])
    assert not subject.held
    apply(subject, Wire().stored(path(16), 1))
    assert subject.held == ours(path(16))
    apply(subject, Wire().removed(path(3)))
    assert not subject.held


def test_a_child_loses_its_credit_with_its_parent_and_gets_it_back() -> None:
    subject = mirror()
    apply(subject, Wire().stored(path(48), 16, 3))
    apply(subject, Wire().removed(path(16)))
    assert not subject.held
    apply(subject, Wire().stored(path(16), 16))
    assert subject.held == ours(path(48))


def test_a_block_held_twice_stays_until_both_are_gone() -> None:
    subject = mirror()
    apply(subject, Wire().stored(path(16), 16), Wire().stored(path(16), 16))
    apply(subject, Wire().removed(path(16)))
    assert subject.held == ours(path(16))
    apply(subject, Wire().removed(path(16)))
    assert not subject.held


def test_blocks_whose_parents_came_before_us_count_once_those_are_told() -> None:
    subject = mirror()
    apply(subject, Wire().stored(path(64), 16, 2))
    assert not subject.held
    apply(subject, Wire().stored(path(32), 16, 2))
    assert subject.held == ours(path(64))


def test_a_salted_prompt_has_a_namespace_of_its_own() -> None:
    subject = mirror()
    apply(subject, Wire().stored(path(32), 16, 2, extra_keys=[["salt"], None]))
    assert subject.held == ours(path(32), "salt")
    apply(subject, WIRES["sglang"].stored(path(32, 100), 16, 2, cache_salt="salt"))
    assert subject.held == ours(path(32), "salt") | ours(path(32, 100), "salt")


@pytest.mark.parametrize(
    "fields",
    [
        {"lora_id": 3},
        {"lora_name": "adapter"},
        {"extra_keys": [["adapter", "salt"], None]},
        {"extra_keys": [[["image", 4]], None]},
        {"extra_keys": [[b"embedding"], None]},
    ],
)
def test_blocks_that_depend_on_more_than_text_count_for_nobody_nor_do_those_after_them(
    fields: dict[str, Any],
) -> None:
    subject = mirror()
    apply(subject, Wire().stored(path(32), 16, 2, **fields), Wire().stored(path(48), 16))
    assert not subject.held
    apply(subject, Wire().removed(path(16), path(32), path(48)))
    assert not subject.num_nodes


def test_an_image_in_the_middle_cuts_off_what_follows() -> None:
    subject = mirror()
    apply(subject, Wire().stored(path(48), 16, 3, extra_keys=[None, [["image", 0]], None]))
    assert subject.held == ours(path(16))


def test_other_tiers_and_groups_of_layers_dont_count() -> None:
    subject = mirror()
    apply(subject, Wire().stored(path(16), 16, medium="CPU"))
    sliding: dict[str, Any] = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window"}
    apply(subject, Wire().stored(path(16), 16, **sliding))
    assert not subject.held
    full: dict[str, Any] = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    apply(subject, Wire().stored(path(16), 16, **full))
    apply(subject, Wire().removed(path(16), group_idx=1), Wire().removed(path(16), medium="CPU", group_idx=0))
    assert subject.held == ours(path(16))
    apply(subject, Wire().removed(path(16), group_idx=0))
    assert not subject.held


def test_blocks_left_out_of_a_window_make_the_tokens_nobody_s() -> None:
    subject = mirror()
    event = Wire().stored(path(48), 16, 3)
    del event["block_hashes"][1]
    apply(subject, event)
    assert not subject.held


def test_a_name_that_stands_for_two_blocks_counts_for_neither() -> None:
    """As SGLang named pages once: by their own tokens, without those before."""
    wire = Wire(lambda tokens: name_signed(tokens[-16:]))
    subject = mirror()
    page = path(16, 500)
    apply(subject, wire.stored((*path(16), *page), 16, 2))
    assert len(subject.held) == 2
    apply(subject, wire.stored((*path(16, 100), *page), 16, 2))
    assert subject.conflicts == 1
    assert subject.held == ours(path(16)) | ours(path(16, 100))


def test_a_block_in_a_circle_counts_for_nobody() -> None:
    subject = mirror()
    event = Wire().stored(path(32), 16)
    event["parent_block_hash"] = event["block_hashes"][0]
    apply(subject, event)
    assert not subject.held


def test_the_end_of_a_block_may_lie_in_several_engine_blocks() -> None:
    """Blocks of 24: our second one ends in either of two."""
    subject = mirror()
    one, two = (*path(24), *path(24, 24)), (*path(24), *path(8, 24), *path(16, 900))
    apply(subject, Wire().stored(one, 24, 2), Wire().stored(two, 24))
    assert subject.held == ours(one) | ours(two)
    apply(subject, Wire().removed(one))
    assert subject.held == ours(two)
    assert BLOCK_SIZE == 16
