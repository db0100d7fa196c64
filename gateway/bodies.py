"""A request's body: is it one that we read, and what is in it once it is unpacked."""

import zlib
from collections.abc import Awaitable, Callable, Mapping

import zstandard
from aiohttp import web

from gateway.errors import UnsupportedEncoding
from gateway.http.aiohttp_exchange import AiohttpExchange
from gateway.http.errors import HttpError
from gateway.keys import CONFIG, POOLS
from replica.protocol.openai import RequestError

ENCODINGS = ("gzip", "deflate", "zstd")
INLINE_MAX = 2 << 10
"""Compressed bytes that are unpacked on the event loop; they become 1000 times as many at most."""
ZSTD_WINDOW_MAX = 8 << 20
"""Bytes of memory that a body may ask for, as in RFC 9659."""
ZSTD_SLICE = 256
"""Compressed bytes at a time: there is no bound on what they become but 128 KiB for each three of them."""

InThread = Callable[[Callable[[], bytes]], Awaitable[bytes]]


async def read_body(request: web.Request) -> bytes:
    """On the routes that aiohttp serves, which must not unpack by itself: its own errors are no JSON."""
    app, encoding = request.app, check_content(request.headers)
    body = await AiohttpExchange(request).body()
    if encoding:
        body = await unpacked_body(body, encoding, app[CONFIG].body_limit, app[POOLS].first.tokenizer.in_thread)
    return body


async def unpacked_body(body: bytes, encoding: str, limit: int, in_thread: InThread) -> bytes:
    """Raises HttpError, RequestError."""
    if len(body) <= INLINE_MAX and encoding != "zstd":
        return unpacked(body, encoding, limit)
    return await in_thread(lambda: unpacked(body, encoding, limit))


def check_content(headers: Mapping[str, str]) -> str:
    """The body's encoding, if it has one that can be undone. Raises UnsupportedEncoding or RequestError."""
    given = headers.get("content-encoding")
    encoding = "" if given is None else _coding(given)
    kind = headers.get("content-type")
    if kind is not None and kind != "application/json" and _bare(kind) != "application/json":
        raise RequestError(f"content-type must be application/json, not {_bare(kind)}")
    return encoding


def _coding(given: str) -> str:
    encoding = given.strip().lower()
    if encoding == "identity":
        return ""
    if encoding and encoding not in ENCODINGS:
        raise UnsupportedEncoding(f"content-encoding {encoding!r}: send gzip, deflate, zstd or nothing")
    return encoding


def unpacked(body: bytes, encoding: str, limit: int) -> bytes:
    """Raises HttpError where it is more than the limit, RequestError where it is broken."""
    try:
        result, is_whole = _unzstd(body, limit) if encoding == "zstd" else _inflated(body, encoding, limit)
    except (zlib.error, zstandard.ZstdError) as error:
        raise RequestError(f"the body is no {encoding}: {error}", code="invalid_body") from error
    if len(result) > limit:
        raise HttpError(413, "body_too_large", f"the body may have {limit} bytes, unpacked")
    if not is_whole:
        raise RequestError(f"the body is cut off, or more than one {encoding}", code="invalid_body")
    return result


def _inflated(body: bytes, encoding: str, limit: int) -> tuple[bytes, bool]:
    """One byte more than the limit at most; and whether that is all of it."""
    # Some clients send deflate without zlib's header; the first byte tells.
    raw_deflate = encoding == "deflate" and body[:1] and body[0] & 15 != 8
    unpacker = zlib.decompressobj(31 if encoding == "gzip" else -15 if raw_deflate else 15)
    result = unpacker.decompress(body, limit + 1)
    return result, unpacker.eof and not unpacker.unused_data


def _unzstd(body: bytes, limit: int) -> tuple[bytes, bool]:
    """Likewise, but for what the last slice brings."""
    unpacker = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_MAX).decompressobj()
    result = bytearray()
    for begin in range(0, len(body), ZSTD_SLICE):
        if unpacker.eof:
            return bytes(result), False
        result += unpacker.decompress(body[begin : begin + ZSTD_SLICE])
        if len(result) > limit:
            break
    return bytes(result), unpacker.eof and not unpacker.unused_data


def _bare(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()
