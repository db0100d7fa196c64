"""The outermost edge of a request: every error in OpenAI's shape, and the only place that catches all of them."""

import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from aiohttp import web

from gateway.errors import INTERNAL, Answer, GatewayError, answer_for
from gateway.explain import decision_headers
from gateway.http.errors import HttpError
from gateway.traces import Trace
from replica.protocol import headers
from replica.protocol.openai import RequestError, error_body

log = logging.getLogger(__name__)

CLIENT_GONE = 499

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Failure:
    """What goes to the client in place of an answer."""

    status: int
    headers: dict[str, str]
    body: bytes
    code: str
    """What went wrong, in one word."""


async def guarded(work: Awaitable[_T], trace: Trace | None = None) -> _T | Failure:
    """Raises ConnectionError where the client went away while its answer was being written, and nothing else."""
    try:
        return await work
    except Exception as error:
        return failure_of(error, trace)


def failure_of(error: Exception, trace: Trace | None) -> Failure:
    """Of an error that is just being handled; ConnectionError is raised again."""
    match error:
        case web.HTTPException():
            allow = {"allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            return failure(trace, Answer(error.status, _kind(error.status), None), error.reason, extra=allow)
        case HttpError():
            return failure(trace, Answer(error.status, _kind(error.status), error.code), str(error))
        case RequestError():
            return failure(trace, Answer(400, "invalid_request_error", error.code), str(error), param=error.param)
        case GatewayError():
            return failure(trace, answer_for(error), str(error))
        case ConnectionError():
            raise error
        case _:
            log.error("request %s failed", "without id" if trace is None else trace.request_id, exc_info=error)
            return failure(trace, INTERNAL, "internal error")


def _kind(status: int) -> str:
    return "server_error" if status >= 500 else "invalid_request_error"


def failure(
    trace: Trace | None, answer: Answer, message: str, *, param: str | None = None, extra: dict[str, str] | None = None
) -> Failure:
    fields = {"content-type": "application/json", **(extra or {})}
    if answer.status == 401:
        fields["www-authenticate"] = "Bearer"
    if answer.retry_after_s is not None:
        fields["retry-after"] = str(answer.retry_after_s)
    if trace is not None:
        fields[headers.REQUEST_ID] = trace.request_id
        fields |= decision_headers(trace.considered)
    body = error_body(message, type=answer.type, param=param, code=answer.code)
    return Failure(answer.status, fields, body, answer.code or answer.type)
