"""Heads, as pure functions."""

from random import Random

import pytest

from gateway.http.errors import HttpError
from gateway.http.head import MAX_HEAD_BYTES, find_end, parse_request, parse_response


def test_a_request_s_head() -> None:
    head = parse_request(
        b"POST /v1/x?y=1 HTTP/1.1\r\nHost: h\r\nX-Many: a\r\nx-many:b \t\r\nEmpty:\r\nContent-Length: 12\r\n\r\n"
    )
    assert (head.method, head.path, head.target, head.length, head.keep_alive) == (
        "POST",
        "/v1/x",
        "/v1/x?y=1",
        12,
        True,
    )
    assert head.headers == {"host": "h", "x-many": "a, b", "empty": "", "content-length": "12"}


@pytest.mark.parametrize(
    ("minor", "connection", "lives"),
    [(1, "", True), (1, "close", False), (1, "Upgrade, CLOSE", False), (0, "", False), (0, "Keep-Alive", True)],
)
def test_who_keeps_the_connection(minor: int, connection: str, lives: bool) -> None:
    field = f"connection: {connection}\r\n" if connection else ""
    assert parse_request(f"GET / HTTP/1.{minor}\r\nhost: h\r\n{field}\r\n".encode()).keep_alive is lives


def test_bytes_that_are_no_utf_8_are_kept() -> None:
    head = parse_request(b"GET / HTTP/1.1\r\nhost: h\r\nx: \xff\xc3\xa9\r\n\r\n")
    assert head.headers["x"].encode(errors="surrogateescape") == b"\xff\xc3\xa9"


@pytest.mark.parametrize(
    ("raw", "length", "chunked", "keep"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", 3, False, True),
        (b"HTTP/1.1 200\r\nTransfer-Encoding: Chunked\r\n\r\n", None, True, True),
        (b"HTTP/1.1 200 OK\r\n\r\n", None, False, False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\n", 3, False, False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 0, False, True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\ncontent-length: 3\r\n\r\n", 3, False, False),
    ],
)
def test_how_an_answer_is_framed(raw: bytes, length: int | None, chunked: bool, keep: bool) -> None:
    head = parse_response(raw)
    assert (head.length, head.chunked, head.keep_alive) == (length, chunked, keep)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
    ],
)
def test_an_unclear_answer_is_refused(raw: bytes) -> None:
    with pytest.raises(HttpError):
        parse_response(raw)


def test_a_head_is_looked_for_no_further_than_it_may_go() -> None:
    assert find_end(b"GET / HTTP/1.1\r\nhost: h\r\n") == -1
    with pytest.raises(HttpError, match="more than"):
        find_end(b"x" * MAX_HEAD_BYTES)
    with pytest.raises(HttpError, match="CR LF"):
        find_end(b"GET / HTTP/1.1\n")


@pytest.mark.parametrize("seed", range(20))
def test_garbage_ends_in_an_error_and_nothing_else(seed: int) -> None:
    print("seed", seed)
    rng = Random(seed)
    good = bytearray(b"POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: 12\r\nx: " + b"y" * 50 + b"\r\n\r\n")
    for _ in range(300):
        raw = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            raw[rng.randrange(len(raw) - 4)] = rng.randrange(256)
        try:
            head = parse_request(bytes(raw))
        except HttpError:
            continue
        assert head.length is not None
        assert all("\r" not in value and "\n" not in value for value in head.headers.values())
