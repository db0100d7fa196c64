"""Lines are pure: ids share what prompts share, and nothing can be turned back."""

import random
from dataclasses import replace

import orjson
import pytest

from gateway.recording.lines import BlockIds, Entry, Lines
from tests.gateway.fakes import blocks

ENTRY = Entry(
    received_at=12.5,
    duration_s=2.0,
    tokens=40,
    hashes=blocks(1, 2),
    output_tokens=7,
    estimated=False,
    session="ask-4711",
    tenant="",
    predicted=32,
    delivered=16,
    ttft_s=0.125,
    failed=False,
)
KEY = b"k" * 16


def test_a_line_is_mooncakes_with_more_beside() -> None:
    line = orjson.loads(Lines(10.0, KEY).line(ENTRY))
    pseudonym = line.pop("session_id")
    assert line == {
        "timestamp": 2500,
        "input_length": 40,
        "output_length": 7,
        "hash_ids": [0, 1, 2],
        "block_size": 16,
        "cached_predicted": 32,
        "cached_delivered": 16,
        "ttft_ms": 125.0,
        "duration_ms": 2000.0,
    }
    assert len(pseudonym) == 16


def test_prompts_share_ids_as_far_as_they_share_blocks() -> None:
    lines = Lines(0.0, KEY)
    shared, own = blocks(1, 3), blocks(2, 2)
    first = orjson.loads(lines.line(replace(ENTRY, tokens=48, hashes=shared)))["hash_ids"]
    second = orjson.loads(lines.line(replace(ENTRY, tokens=70, hashes=[*shared[:2], *own])))["hash_ids"]
    assert first == [0, 1, 2]
    # The last block isn't whole: nobody can have it.
    assert second == [0, 1, 3, 4, 5]
    scored = orjson.loads(lines.line(replace(ENTRY, tokens=40, hashes=[])))["hash_ids"]
    assert scored == [6, 7, 8]


def test_names_are_pseudonyms_of_one_file() -> None:
    def names(key: bytes, entry: Entry) -> tuple[str, str]:
        line = Lines(0.0, key).line(entry)
        assert b"ask-4711" not in line and b"salt" not in line
        fields = orjson.loads(line)
        return fields["session_id"], fields["tenant_id"]

    entry = replace(ENTRY, tenant="salt")
    assert names(KEY, entry) == names(KEY, entry)
    assert names(KEY, entry) != names(b"l" * 16, entry)
    session, tenant = names(KEY, replace(entry, tenant=entry.session))
    assert session != tenant


def test_what_is_not_known_is_left_out() -> None:
    entry = replace(
        ENTRY, session="", predicted=None, delivered=None, ttft_s=None, estimated=True, failed=True, received_at=1.0
    )
    fields = orjson.loads(Lines(10.0, KEY).line(entry))
    assert fields.keys() == {
        *("timestamp", "input_length", "output_length", "hash_ids", "block_size", "duration_ms"),
        *("output_estimated", "failed"),
    }
    assert fields["timestamp"] == 0


@pytest.mark.parametrize("max_blocks", [8, 50, 10_000])
def test_ids_against_a_plain_list(seed: int, max_blocks: int) -> None:
    """As one that keeps all hashes in order of use, and numbers anew what isn't in the list."""
    randomness = random.Random(seed)
    ids = BlockIds(max_blocks)
    known: list[tuple[int, int]] = []
    fresh = 0
    for _ in range(300):
        hashes = blocks(randomness.randrange(5), randomness.randrange(1, 12))
        expected = []
        for block in hashes:
            number = dict(known).get(block)
            if number is None:
                number, fresh = fresh, fresh + 1
                known.append((block, number))
            expected.append(number)
        assert ids.of(hashes) == expected
        numbers = dict(known)
        known = [item for item in known if item[0] not in hashes] + [(block, numbers[block]) for block in hashes[::-1]]
        known = known[-max_blocks:]
        assert len(ids) == len(known)
