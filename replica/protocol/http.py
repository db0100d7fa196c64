"""JSON answers and OpenAI's error objects, as replicas and adapters send them."""

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from replica.protocol.openai import error_body


def json_response(value: Mapping[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def error_response(
    status: int,
    message: str,
    kind: str,
    param: str | None = None,
    code: str | None = None,
    retry_after_s: int | None = None,
) -> web.Response:
    return web.Response(
        status=status,
        body=error_body(message, type=kind, param=param, code=code),
        content_type="application/json",
        headers=None if retry_after_s is None else {"retry-after": str(retry_after_s)},
    )


def from_http_exception(request: web.Request, error: web.HTTPException) -> web.Response:
    """What aiohttp, or a handler with a text of its own, has raised."""
    generic = f"{error.status}: {error.reason}"
    message = f"{error.reason}: {request.method} {request.path}" if error.text in (None, generic) else error.text
    return error_response(error.status, message or error.reason, "invalid_request_error")
