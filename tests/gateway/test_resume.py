"""What a gateway reads from a replica's stream to have it gone on with elsewhere."""

import random

import pytest

from gateway.resume import Progress
from replica.protocol import headers
from replica.protocol.resume import USAGE_MARK, Begun, Told, mark, read_marks

GIVEN = {headers.RESUMABLE: "1", headers.REQUEST_ID: "r-1", headers.DELIVERED_TOKENS: "48"}
EVENT = b'data: {"choices":[{"delta":{"content":"a \\n\\n:0 7\\n"}}]}\n\n'


def progress(choices: int = 1, wants_usage: bool = False) -> Progress:
    made = Progress(Begun(5, 6), choices, wants_usage)
    assert made.begin(GIVEN, "own")
    return made


def test_marks_are_taken_out_and_remembered() -> None:
    one = progress(2)
    assert one.take_marks(mark(0, [5, 6], ends=False) + EVENT) == EVENT
    many = mark(1, [7], ends=False) + EVENT + mark(0, [8], ends=False) + EVENT + mark(0, [], ends=True) + EVENT
    assert one.take_marks(many) == 3 * EVENT
    one.stop()
    assert one.shown == {0: Told([5, 6, 8], True), 1: Told([7], False)}
    assert one.tokens == 4 and not one.is_whole
    assert one.field() == {
        "resume": {
            "id": "r-1",
            "cached_tokens": 48,
            "choices": [{"token_ids": [5, 6, 8], "finished": True}, {"token_ids": [7], "finished": False}],
        }
    }


def test_however_events_come_together_the_client_gets_the_same(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        marks = [mark(rng.randrange(3), rng.sample(range(300), rng.randrange(4)), ends=False) for _ in range(8)]
        one, at, out = progress(3), 0, b""
        while at < len(marks):
            step = rng.randint(1, 4)
            out += one.take_marks(b"".join(line + EVENT for line in marks[at : at + step]))
            at += step
        assert out == len(marks) * EVENT
        one.stop()
        assert one.shown == read_marks(marks)


def test_a_comment_between_marked_events_is_no_mark() -> None:
    one, first, second = progress(), mark(0, [5], ends=False), mark(0, [6], ends=False)
    assert one.take_marks(first + EVENT + b": ping\n\n" + second + EVENT) == EVENT + b": ping\n\n" + EVENT
    one.stop()
    assert one.shown == {0: Told([5, 6], False)}


def test_an_event_without_a_mark_passes_as_it_is() -> None:
    one = progress()
    assert one.take_marks(EVENT + EVENT) == EVENT + EVENT
    one.stop()
    assert one.shown == {} and one.field() == {}


@pytest.mark.parametrize("wants_usage", [False, True])
def test_an_answer_is_whole_with_the_last_finish_reason_or_the_usage(wants_usage: bool) -> None:
    one = progress(1, wants_usage)
    one.take_marks(mark(0, [5], ends=True) + EVENT)
    one.stop()
    assert one.is_whole is not wants_usage
    one.take_marks(USAGE_MARK + EVENT)
    one.stop()
    assert one.is_whole


@pytest.mark.parametrize("line", [b":0 7\n", b":0\n", b":0 .\n", b":12 4294967295 .\n"])
def test_a_mark_is_read(line: bytes) -> None:
    assert read_marks([line]) is not None


@pytest.mark.parametrize("line", [b": keep-alive\n", b":0 -1\n", b":x 7\n", b":0 7 . 8\n", b":0 99999999999\n", b":\n"])
def test_what_is_no_mark_makes_an_answer_one_that_cannot_be_gone_on_with(line: bytes) -> None:
    one = progress()
    one.take_marks(mark(0, [5], ends=False) + EVENT)
    one.take_marks(line + EVENT)
    one.stop()
    assert one.shown is None and one.field() == {} and not one.is_whole


def test_a_choice_that_was_not_asked_for_makes_it_such_a_one_too() -> None:
    one = progress(1)
    one.take_marks(mark(1, [5], ends=False) + EVENT)
    one.stop()
    assert one.shown is None


def test_a_replica_that_cannot_leaves_no_trace() -> None:
    one = Progress(Begun(5, 6), 1, False)
    assert not one.begin({headers.REQUEST_ID: "x"}, "own")
    one.stop()
    assert one.shown is None


def test_what_began_an_answer_is_kept_through_the_attempts() -> None:
    one = progress()
    assert one.begin({headers.RESUMABLE: "1", headers.REQUEST_ID: "other", headers.DELIVERED_TOKENS: "0"}, "own")
    one.take_marks(mark(0, [5], ends=False) + EVENT)
    one.stop()
    assert (one.field()["resume"]["id"], one.field()["resume"]["cached_tokens"]) == ("r-1", 48)


def test_what_all_attempts_have_in_common_goes_in_a_header() -> None:
    begun = Begun(1_700_000_000, 2**63 - 1)
    assert Begun.decode(begun.encode()) == begun
    assert Begun.decode("1") is None and Begun.decode("a 1") is None and Begun.decode("1 -2") is None
