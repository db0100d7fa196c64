"""What a client calls the conversation that a request belongs to."""

from collections.abc import Mapping

import xxhash

SESSION_HEADERS = ("x-session-id", "x-session-affinity", "session-id")
"""As other routers and coding agents name it; the first that is set counts."""

MAX_LENGTH = 64


def session_name(headers: Mapping[str, str], user: str | None) -> str:
    """Of a header, else the body's `user`, else nothing. A long one is hashed: it is kept in memory."""
    first, second, third = SESSION_HEADERS
    given = headers.get(first) or headers.get(second) or headers.get(third) or user or ""
    if len(given) <= MAX_LENGTH:
        return given
    # A header may hold bytes that are no UTF-8.
    return xxhash.xxh3_128_hexdigest(given.encode(errors="surrogateescape"))
