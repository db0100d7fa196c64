"""The relay of events, on any split of the bytes."""

import re
from random import Random

import pytest

from gateway.events import DONE, HELD_BACK_MAX, EventRelay, find_done, without_comment
from tests.gateway.fakes import event

EVENTS = event("one") + event("zwei …") + event("データ")


def relayed(chunks: list[bytes], *, breaks: bool = False) -> bytes:
    relay = EventRelay()
    out = b"".join(relay.feed(chunk) for chunk in chunks)
    return out + (b"<broken>" if breaks and not relay.done else b"" if breaks else relay.end())


def cut(whole: bytes, rng: Random) -> list[bytes]:
    cuts = sorted(rng.sample(range(1, len(whole)), rng.randrange(20)))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


@pytest.mark.parametrize("seed", range(40))
def test_b11_bytes_are_the_same_on_any_split(seed: int) -> None:
    print("seed", seed)
    whole = EVENTS + DONE
    assert relayed(cut(whole, Random(seed))) == whole


@pytest.mark.parametrize("seed", range(20))
def test_b11_events_that_end_in_crlf_are_events_too(seed: int) -> None:
    print("seed", seed)
    events = EVENTS.replace(b"\n", b"\r\n")
    assert relayed(cut(events + b"data: [DONE]\r\n\r\n", Random(seed))) == events + DONE
    relay = EventRelay()
    assert relay.feed(events) == events


@pytest.mark.parametrize("size", [1, 2, 3])
def test_b11_byte_by_byte(size: int) -> None:
    whole = EVENTS + DONE
    assert relayed([whole[at : at + size] for at in range(0, len(whole), size)]) == whole


def test_b09_done_is_sent_once_and_ends_the_relay() -> None:
    assert relayed([EVENTS, DONE + DONE, b"junk"]) == EVENTS + DONE
    assert relayed([EVENTS]) == EVENTS + DONE
    assert relayed([]) == DONE


def test_nothing_goes_on_behind_the_end() -> None:
    for stop in (EventRelay.end, lambda relay: relay.break_off(b"{}")):
        relay = EventRelay()
        assert relay.feed(event("one")) + relay.feed(event("two")) == event("one") + event("two")
        assert stop(relay).endswith(DONE)
        assert relay.feed(event("three")) == b""


def test_done_within_a_text_is_no_end() -> None:
    tricky = event("data: [DONE]\n\n")
    assert relayed([tricky, EVENTS, DONE]) == tricky + EVENTS + DONE


def test_b07_half_an_event_before_a_break_is_held_back() -> None:
    assert relayed([EVENTS + b'data: {"cho'], breaks=True) == EVENTS + b"<broken>"
    assert relayed([EVENTS, DONE], breaks=True) == EVENTS + DONE


def test_the_first_event_leaves_before_the_second_is_there() -> None:
    relay = EventRelay()
    assert relay.feed(event("one") + b"data: ") == event("one")
    assert relay.begun


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_stream_has_begun_with_its_first_event(line_end: str) -> None:
    relay = EventRelay()
    whole = f"data: one{line_end}{line_end}".encode()
    assert relay.feed(whole[:-1]) == b"" and not relay.begun
    assert relay.feed(whole[-1:]) == whole and relay.begun


def test_an_event_without_end_is_passed_on_at_last_and_nothing_is_put_into_it() -> None:
    relay = EventRelay()
    endless = b"data: " + b"x" * HELD_BACK_MAX
    assert relay.feed(endless[:100]) == b""
    assert relay.feed(endless[100:]) == endless
    assert relay.between_events is False
    assert relay.break_off(b"{}") == b"\n\ndata: {}\n\n" + DONE


def test_a_second_answer_goes_on_where_the_first_broke_off() -> None:
    relay = EventRelay()
    first = relay.feed(event("one") + b'data: {"cho')
    relay.go_on()
    assert first + relay.feed(event("two") + DONE) == event("one") + event("two") + DONE


def test_events_can_be_rewritten_on_their_way() -> None:
    relay = EventRelay()
    relay.rewrite = lambda events: events.replace(b"one", b"ONE")
    assert relay.feed(event("one") + event("two") + DONE) == event("ONE") + event("two") + DONE


@pytest.mark.parametrize("size", range(1, 60, 7))
def test_a_comment_before_the_end_is_taken_out_and_read(size: int) -> None:
    whole = EVENTS + b": delivered-tokens=512\n" + DONE
    relay = EventRelay()
    out = b"".join(relay.feed(whole[start : start + size]) for start in range(0, len(whole), size))
    assert (out, relay.delivered) == (EVENTS + DONE, 512)


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


@pytest.mark.parametrize("seed", range(40))
def test_done_is_found_where_the_plain_pattern_finds_it(seed: int) -> None:
    print("seed", seed)
    rng = Random(seed)
    plain = re.compile(rb"(?:^|(?<=\n))data: ?\[DONE\]\r?\n\r?\n")
    parts = [b"data:", b"data: ", b"[DONE]", b"data: [DONE]", b"\n", b"\r\n", b"\n\n", b" ", b"x", b":"]
    for _ in range(200):
        data = b"".join(rng.choices(parts, k=rng.randrange(12)))
        found = plain.search(data)
        assert find_done(data) == (-1 if found is None else found.start()), data
