from random import Random

import pytest

from loadtest.sse import EventParser

STREAM = (
    ': comment\r\ndata: {"a": "ä€😀"}\r\n\r\n\n\nevent: x\nid: 3\ndata:no space\n\n'
    "data: two\ndata: lines\n\ndata: [DONE]\n\n"
).encode()
EVENTS = ['{"a": "ä€😀"}', "no space", "two\nlines", "[DONE]"]


@pytest.mark.parametrize("seed", range(30))
def test_events_are_whole_wherever_bytes_are_cut(seed: int) -> None:
    print(f"seed {seed}")
    rng = Random(seed)
    parser, found, rest = EventParser(), [], STREAM
    while rest:
        size = rng.randint(1, rng.choice((1, 5, 60)))
        found += parser.feed(rest[:size])
        rest = rest[size:]
    assert found == EVENTS


def test_an_event_without_its_blank_line_isnt_given_out() -> None:
    assert EventParser().feed(b"data: cut off\n") == []
