"""Heads of HTTP/1 messages: bytes to a dataclass, strictly. Pure.

Two parsers that read one message differently are how requests are smuggled, so whatever is odd is refused, never
repaired: bare line feeds, folded lines, a space before a colon, a length twice or beside a transfer coding. Each head
is two calls into `re`: cheaper than callbacks from a parser in C, and all of it can be seen.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from gateway.http.errors import HttpError, malformed

END = b"\r\n\r\n"
MAX_HEAD_BYTES = 32 << 10
MAX_FIELDS = 128
MAX_DIGITS = 18
"""Of a length."""

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_VALUE = r"[^\x00-\x08\x0a-\x1f\x7f]"
_REQUEST_LINE = re.compile(rf"({_TOKEN}{{1,32}}) (/[\x21-\x7e]*|\*|https?://[\x21-\x7e]+) HTTP/1\.([01])\r\n")
_STATUS_LINE = re.compile(rf"HTTP/1\.([01]) ([1-9][0-9]{{2}})(?: {_VALUE}*)?\r\n")
_FIELDS = re.compile(rf"(?>{_TOKEN}++:{_VALUE}*+\r\n)*+\r\n")
FIELD = rf"({_TOKEN}+):[ \t]*({_VALUE}*)"
_FIELD = re.compile(rf"{FIELD}\r\n")
_AUTHORITY = re.compile(r"https?://[^/?]*")
_LONE_LINE_FEED = re.compile(rb"(?<!\r)\n")

_CONTINUE = "100-continue"
_ONCE = frozenset(("content-length", "transfer-encoding", "host", "authorization", "content-type", "content-encoding"))
"""Twice, they would mean what each reader likes."""


class RequestLine(NamedTuple):
    method: str
    target: str
    path: str
    minor: int


class StatusLine(NamedTuple):
    minor: int
    status: int


@dataclass(slots=True)
class RequestHead:
    method: str
    target: str
    """Path and query as they came."""
    path: str
    minor: int
    """Of HTTP/1."""
    headers: dict[str, str]
    """Names in lower case; bytes beyond UTF-8 as lone surrogates."""
    length: int | None
    """Of the body; None: chunked."""
    keep_alive: bool


@dataclass(slots=True)
class ResponseHead:
    minor: int
    status: int
    headers: dict[str, str]
    length: int | None
    """None: chunked, or until the connection closes."""
    chunked: bool
    keep_alive: bool


def find_end(data: bytes) -> int:
    """Where the body begins, or -1. Raises HttpError for a head that can't become a good one any more."""
    end = data.find(END, 0, MAX_HEAD_BYTES)
    if end >= 0:
        return end + len(END)
    if len(data) >= MAX_HEAD_BYTES:
        raise HttpError(431, "headers_too_large", f"the request's headers have more than {MAX_HEAD_BYTES} bytes")
    if _LONE_LINE_FEED.search(data):
        raise malformed("lines of the request's head must end in CR LF")
    return -1


def parse_request(raw: bytes) -> RequestHead:
    """Of a head with its empty line. Raises HttpError."""
    text = raw.decode(errors="surrogateescape")
    line = _REQUEST_LINE.match(text)
    if line is None:
        raise malformed("the request line is malformed; this server speaks HTTP/1.1")
    method, target, minor = line.group(1), line.group(2), int(line.group(3))
    path = target if target[0] != "h" else _AUTHORITY.sub("", target, count=1) or "/"
    return request_head(RequestLine(method, target, path.partition("?")[0], minor), _fields(text, line.end()))


def request_head(line: RequestLine, headers: dict[str, str]) -> RequestHead:
    """Raises HttpError."""
    method, target, path, minor = line
    if minor:
        if "host" not in headers:
            raise malformed("the header host is missing")
        if "expect" in headers and headers["expect"].lower() != _CONTINUE:
            raise HttpError(417, "expectation_failed", f"the header expect may be {_CONTINUE} only")
    return RequestHead(method, target, path, minor, headers, _request_length(headers, minor), _lives(headers, minor))


def parse_response(raw: bytes) -> ResponseHead:
    """Raises HttpError."""
    text = raw.decode(errors="surrogateescape")
    line = _STATUS_LINE.match(text)
    if line is None:
        raise malformed("the status line is malformed")
    return response_head(StatusLine(int(line.group(1)), int(line.group(2))), _fields(text, line.end()))


def response_head(line: StatusLine, headers: dict[str, str]) -> ResponseHead:
    """Raises HttpError."""
    minor, status = line
    is_chunked = "transfer-encoding" in headers
    length = None if is_chunked else _length(headers)
    if is_chunked and (headers["transfer-encoding"].lower() != "chunked" or "content-length" in headers):
        raise malformed("transfer-encoding must be chunked, without a content-length")
    if status < 200 or status in (204, 304):
        length, is_chunked = 0, False
    is_framed = is_chunked or length is not None
    return ResponseHead(minor, status, headers, length, is_chunked, is_framed and _lives(headers, minor))


def _fields(text: str, start: int) -> dict[str, str]:
    if _FIELDS.fullmatch(text, start) is None:
        raise malformed("a header is malformed: it must be NAME: VALUE on one line that ends in CR LF")
    found = _FIELD.findall(text, start)
    if len(found) > MAX_FIELDS:
        raise HttpError(431, "headers_too_large", f"the request has more than {MAX_FIELDS} headers")
    headers = {name.lower(): value.rstrip(" \t") for name, value in found}
    return headers if len(headers) == len(found) else _merged(found)


def _merged(found: list[tuple[str, str]]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in found:
        name, value = name.lower(), value.rstrip(" \t")
        if name in headers:
            if name in _ONCE:
                raise malformed(f"the header {name} may come only once")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    return headers


def _request_length(headers: dict[str, str], minor: int) -> int | None:
    coding = headers.get("transfer-encoding")
    if coding is None:
        return _length(headers) or 0
    if minor == 0 or "content-length" in headers:
        raise malformed("transfer-encoding goes neither with content-length nor with HTTP/1.0")
    if coding.lower() != "chunked":
        raise HttpError(501, "unsupported_transfer_encoding", "transfer-encoding must be chunked, or absent")
    return None


def _length(headers: dict[str, str]) -> int | None:
    value = headers.get("content-length")
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= MAX_DIGITS):
        raise malformed("content-length must be a plain number")
    return int(value)


def _lives(headers: dict[str, str], minor: int) -> bool:
    value = headers.get("connection")
    if value is None:
        return minor == 1
    if value.lower() == "keep-alive":
        return True
    options = {option.strip() for option in value.lower().split(",")}
    return "close" not in options and (minor == 1 or "keep-alive" in options)
