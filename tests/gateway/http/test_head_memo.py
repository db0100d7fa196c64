"""Heads by known lines, against the parser that reads each anew."""

from collections.abc import Callable
from random import Random

import pytest

from gateway.http.errors import HttpError
from gateway.http.head import RequestHead, ResponseHead, parse_request, parse_response
from gateway.http.head_memo import MAX_LINES, HeadMemo

REQUEST_LINES = (
    b"POST /v1/chat/completions HTTP/1.1",
    b"GET http://h/a?b HTTP/1.0",
    b"GET / HTTP/2",
    b"GET /",
    b"",
)
STATUS_LINES = (b"HTTP/1.1 200 OK", b"HTTP/1.0 404 \xff", b"HTTP/1.1 204 No Content", b"HTTP/1.1 99 X", b"")
FIELDS = (
    b"Host: h",
    b"host: other",
    b"Content-Length: 12",
    b"content-length:13 \t",
    b"Content-Length: x",
    b"Transfer-Encoding: chunked",
    b"Connection: close",
    b"connection: Keep-Alive",
    b"X-Many: a",
    b"x-many: \xc3\xa9\xff",
    b"Empty:",
    b"Bad : x",
    b" folded",
    b"line: a\nfeed: b",
    b"return: a\rb",
    b"no colon",
    b"",
    b"Expect: 100-continue",
    b"Expect: more",
)
Read = Callable[[bytes], RequestHead | ResponseHead]


def outcome(read: Read, raw: bytes) -> RequestHead | ResponseHead | tuple[int, str]:
    try:
        return read(raw)
    except HttpError as error:
        return error.status, str(error)


@pytest.mark.parametrize("seed", range(10))
def test_it_reads_as_the_parser_does(seed: int) -> None:
    print("seed", seed)
    rng, memo = Random(seed), HeadMemo()
    for _ in range(2000):
        is_request = rng.random() < 0.5
        first = rng.choice(REQUEST_LINES if is_request else STATUS_LINES)
        some = FIELDS[: rng.choice((3, 9, len(FIELDS)))]
        lines = [first, *(rng.choice(some) for _ in range(rng.randrange(5)))]
        raw = b"\r\n".join(lines) + rng.choice((b"\r\n\r\n", b"\r\n\r\n", b"\r\n\r\n", b"\r\n", b""))
        known, parse = (memo.request, parse_request) if is_request else (memo.response, parse_response)
        assert outcome(known, raw) == outcome(parse, raw), raw


def test_the_limit_of_headers_holds_for_known_lines() -> None:
    memo = HeadMemo()
    for count in (127, 128):
        raw = b"GET / HTTP/1.1\r\nhost: h\r\n" + b"".join(b"x-%d: y\r\n" % number for number in range(count)) + b"\r\n"
        for _ in range(3):
            assert outcome(memo.request, raw) == outcome(parse_request, raw)


def test_it_keeps_no_secret_and_not_too_much() -> None:
    memo = HeadMemo()
    for number in range(3 * MAX_LINES):
        head = memo.request(
            b"GET /%d HTTP/1.1\r\nhost: h\r\nAuthorization: Bearer s3cret\r\nx: %d\r\ny: %b\r\n\r\n"
            % (number % 7, number, b"long" * 100)
        )
        assert head.headers["authorization"] == "Bearer s3cret"
    kept = [*memo._fields, *memo._request_lines]
    assert 9 < len(kept) < 2 * MAX_LINES and not any(b"s3cret" in line or b"long" in line for line in kept)
