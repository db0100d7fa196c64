"""What can be changed while the gateway runs."""

from typing import Any

import orjson
from aiohttp import web

from gateway.introspect import json_response
from gateway.keys import ROUTER, SHADOW
from gateway.policies import FIELDS
from gateway.routing.base import Policy
from gateway.routing.registry import UnknownPolicy, make_policy
from replica.protocol.openai import RequestError


async def set_policy(request: web.Request) -> web.Response:
    """`{"policy": NAME}`, `{"shadow": NAME or null}` or both. Both begin with nothing remembered."""
    made = _policies(_body(await request.read()))
    router, shadow = request.app[ROUTER], request.app[SHADOW]
    previous = router.policy.name
    if (policy := made.get("policy")) is not None:
        router.policy = policy
    if "shadow" in made:
        shadow.use(made["shadow"])
    return json_response(
        {
            "policy": router.policy.name,
            "previous": previous,
            "shadow": shadow.policy.name if shadow.policy else None,
        }
    )


def _body(raw: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is no JSON: {error}", code="invalid_body") from error
    if not isinstance(value, dict) or not value or value.keys() - set(FIELDS):
        raise RequestError(
            'the body must be {"policy": NAME, "shadow": NAME or null}, or one of both', "policy", code="invalid_value"
        )
    return value


def _policies(body: dict[str, Any]) -> dict[str, Policy | None]:
    made: dict[str, Policy | None] = {}
    for field, name in body.items():
        if field == "shadow" and name is None:
            made[field] = None
            continue
        if not isinstance(name, str):
            raise RequestError(f"{field} must be the name of a policy", param=field, code="invalid_value")
        try:
            made[field] = make_policy(name)
        except UnknownPolicy as error:
            raise RequestError(str(error), param=field, code="invalid_value") from error
    return made
