"""/tokenize and /detokenize: answered here, as a replica would."""

from collections.abc import Callable
from typing import Any, TypeVar

from aiohttp import web

from gateway.bodies import read_body
from gateway.errors import ModelNotFound
from gateway.introspect import json_response, max_context, model_name
from gateway.keys import CALLER, TEXT, TOKENIZER
from replica.protocol.strict import RequestError, parse
from replica.protocol.text import TemplateError
from replica.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from replica.protocol.tokenize import detokenize as tokens_to_text
from replica.protocol.tokenize import tokenize as text_to_tokens

_Request = TypeVar("_Request", TokenizeRequest, DetokenizeRequest)


async def tokenize(request: web.Request) -> web.Response:
    parsed = await _parsed(request, TokenizeRequest)
    limit = max_context(request.app)

    def work() -> dict[str, Any]:
        try:
            return text_to_tokens(request.app[TEXT], parsed, limit)
        except TemplateError as error:
            raise RequestError(str(error), "messages") from error

    return await _answer(request, work)


async def detokenize(request: web.Request) -> web.Response:
    parsed = await _parsed(request, DetokenizeRequest)
    return await _answer(request, lambda: tokens_to_text(request.app[TEXT], parsed))


async def _parsed(request: web.Request, kind: type[_Request]) -> _Request:
    """Raises RequestError, ModelNotFound."""
    parsed = parse(kind, await read_body(request))
    if parsed.model not in (None, model_name(request.app)):
        raise ModelNotFound(f"the model {parsed.model!r} does not exist")
    if not request[CALLER].may_use(model_name(request.app)):
        raise ModelNotFound("this key may not use the model")
    return parsed


async def _answer(request: web.Request, work: Callable[[], dict[str, Any]]) -> web.Response:
    return json_response(await request.app[TOKENIZER].in_thread(work))
