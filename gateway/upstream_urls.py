"""Upstreams by their URLs: what an operator writes -> an id that logs, metrics and Redis take, and the URL to call."""

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

_ODD = re.compile(r"[^A-Za-z0-9._:\-]+")


def base_url(written: str) -> str:
    """In front of `/v1`."""
    return written.strip().rstrip("/").removesuffix("/v1").rstrip("/")


def named_upstreams(urls: Iterable[str]) -> dict[str, str]:
    """By id: the URL in front of `/v1`. Raises ValueError."""
    found: dict[str, str] = {}
    for written in urls:
        url = base_url(written)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{written!r} is no URL of the form http://HOST:PORT")
        if "@" in parts.netloc:
            raise ValueError("a URL with a user or password in it would end in logs")
        if parts.port == 0:
            raise ValueError(f"{written!r} has port 0")
        name = _ODD.sub("-", parts.netloc + parts.path).strip("-")[:128]
        if name in found:
            raise ValueError(f"{written!r} is given twice")
        found[name] = url
    return found
