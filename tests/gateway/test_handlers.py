"""The relay of events, on any split of the bytes."""

from random import Random

import aiohttp
import pytest

from gateway.errors import ReplicaDied
from gateway.handlers import DONE, relay_events, without_comment
from tests.gateway.fakes import event

EVENTS = event("one") + event("zwei …") + event("データ")


async def relayed(chunks: list[bytes], *, breaks: bool = False) -> bytes:
    out = bytearray()
    left = list(chunks)

    async def read() -> bytes:
        if left:
            return left.pop(0)
        if breaks:
            raise aiohttp.ClientPayloadError
        return b""

    async def write(data: bytes) -> None:
        out.extend(data)

    try:
        await relay_events(read, write)
    except ReplicaDied:
        assert breaks
        out.extend(b"<broken>")
    return bytes(out)


@pytest.mark.parametrize("seed", range(20))
async def test_bytes_are_the_same_on_any_split(seed: int) -> None:
    print("seed", seed)
    rng = Random(seed)
    whole = EVENTS + DONE
    cuts = sorted(rng.sample(range(1, len(whole)), rng.randrange(20)))
    chunks = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert await relayed(chunks) == whole


async def test_done_is_sent_once_and_ends_the_relay() -> None:
    assert await relayed([EVENTS, DONE + DONE, b"junk"]) == EVENTS + DONE
    assert await relayed([EVENTS]) == EVENTS + DONE
    assert await relayed([]) == DONE


async def test_done_within_a_text_is_no_end() -> None:
    tricky = event("data: [DONE]\n\n")
    assert await relayed([tricky, EVENTS, DONE]) == tricky + EVENTS + DONE


async def test_half_an_event_before_a_break_is_held_back() -> None:
    assert await relayed([EVENTS + b'data: {"cho'], breaks=True) == EVENTS + b"<broken>"
    assert await relayed([EVENTS, DONE], breaks=True) == EVENTS + DONE


@pytest.mark.parametrize("size", range(1, 60, 7))
async def test_a_comment_before_the_end_is_taken_out_and_read(size: int) -> None:
    whole = EVENTS + b": delivered-tokens=512\n" + DONE
    out = bytearray()
    left = [whole[start : start + size] for start in range(0, len(whole), size)]

    async def read() -> bytes:
        return left.pop(0)

    async def write(data: bytes) -> None:
        out.extend(data)

    assert await relay_events(read, write) == 512
    assert bytes(out) == EVENTS + DONE


@pytest.mark.parametrize(
    ("comment", "delivered"),
    [(b": delivered-tokens=0\n", 0), (b": delivered-tokens=-1\n", None), (b": delivered-tokens=\n", None)],
)
def test_what_a_comment_tells(comment: bytes, delivered: int | None) -> None:
    assert without_comment(EVENTS + comment) == (EVENTS, delivered)
    assert without_comment(comment) == (b"", delivered)


@pytest.mark.parametrize("events", [b"", EVENTS, EVENTS + b": keep-alive\n", b": other\n"])
def test_other_events_and_comments_stay(events: bytes) -> None:
    assert without_comment(events) == (events, None)
