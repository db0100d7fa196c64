"""/tokenize and /detokenize: answered here, as a replica would."""

from collections.abc import Callable
from typing import Any, TypeVar

from aiohttp import web

from gateway.bodies import read_body
from gateway.errors import ModelNotFound
from gateway.introspect import json_response
from gateway.keys import CALLER, CLOCK, POOLS
from gateway.pools import Pool
from replica.protocol.strict import RequestError, parse
from replica.protocol.text import TemplateError
from replica.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from replica.protocol.tokenize import detokenize as tokens_to_text
from replica.protocol.tokenize import tokenize as text_to_tokens

_Request = TypeVar("_Request", TokenizeRequest, DetokenizeRequest)


async def tokenize(request: web.Request) -> web.Response:
    parsed, pool = await _parsed(request, TokenizeRequest)
    limit = pool.context_limit.at(request.app[CLOCK]())

    def work() -> dict[str, Any]:
        try:
            return text_to_tokens(pool.text, parsed, limit)
        except TemplateError as error:
            raise RequestError(str(error), "messages") from error

    return await _answer(pool, work)


async def detokenize(request: web.Request) -> web.Response:
    parsed, pool = await _parsed(request, DetokenizeRequest)
    return await _answer(pool, lambda: tokens_to_text(pool.text, parsed))


async def _parsed(request: web.Request, kind: type[_Request]) -> tuple[_Request, Pool]:
    """Raises RequestError, ModelNotFound."""
    parsed = parse(kind, await read_body(request))
    pool = request.app[POOLS].of(parsed.model)
    if not request[CALLER].may_use(pool.name):
        raise ModelNotFound("this key may not use the model")
    return parsed, pool


async def _answer(pool: Pool, work: Callable[[], dict[str, Any]]) -> web.Response:
    return json_response(await pool.tokenizer.in_thread(work))
