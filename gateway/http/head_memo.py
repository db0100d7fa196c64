"""Heads read by lines that were read before: a client says the same with each request but for a line or two, and so
does a replica. What is new or odd is read by `head.py`, whose result this always is.
"""

import re
from typing import TypeVar

from gateway.http.head import (
    FIELD,
    MAX_FIELDS,
    RequestHead,
    RequestLine,
    ResponseHead,
    StatusLine,
    parse_request,
    parse_response,
    request_head,
    response_head,
)

MAX_LINES = 512
"""Of each kind; then all are forgotten, which costs less than to know which."""
MAX_LINE_BYTES = 256
_SECRET = frozenset(("authorization", "proxy-authorization", "cookie", "api-key", "x-api-key"))
"""What nobody has a reason to keep."""

_FIELD_LINE = re.compile(FIELD)
_Known = TypeVar("_Known")


class HeadMemo:
    def __init__(self) -> None:
        self._request_lines: dict[bytes, RequestLine] = {}
        self._status_lines: dict[bytes, StatusLine] = {}
        self._fields: dict[bytes, tuple[str, str]] = {}

    def request(self, raw: bytes) -> RequestHead:
        """As `parse_request`."""
        lines = raw.split(b"\r\n")
        known = self._request_lines.get(lines[0])
        headers = None if known is None else self._headers(lines)
        if known is None or headers is None:
            head = parse_request(raw)
            _keep(self._request_lines, lines[0], RequestLine(head.method, head.target, head.path, head.minor))
            return head
        return request_head(known, headers)

    def response(self, raw: bytes) -> ResponseHead:
        """As `parse_response`."""
        lines = raw.split(b"\r\n")
        known = self._status_lines.get(lines[0])
        headers = None if known is None else self._headers(lines)
        if known is None or headers is None:
            head = parse_response(raw)
            _keep(self._status_lines, lines[0], StatusLine(head.minor, head.status))
            return head
        return response_head(known, headers)

    def _headers(self, lines: list[bytes]) -> dict[str, str] | None:
        """None: they aren't as they should be, or one comes twice."""
        if len(lines) > MAX_FIELDS + 3 or lines.pop() or lines.pop():
            return None
        known = self._fields
        headers: dict[str, str] = {}
        for line in lines[1:]:
            field = known.get(line) or self._read(line)
            if field is None:
                return None
            headers[field[0]] = field[1]
        return headers if len(headers) == len(lines) - 1 else None

    def _read(self, line: bytes) -> tuple[str, str] | None:
        found = _FIELD_LINE.fullmatch(line.decode(errors="surrogateescape"))
        if found is None:
            return None
        field = found[1].lower(), found[2].rstrip(" \t")
        if field[0] not in _SECRET:
            _keep(self._fields, line, field)
        return field


def _keep(memo: dict[bytes, _Known], line: bytes, value: _Known) -> None:
    if len(line) > MAX_LINE_BYTES:
        return
    if len(memo) >= MAX_LINES:
        memo.clear()
    memo[line] = value
