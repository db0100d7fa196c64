"""What can be changed while the gateway runs."""

from typing import Any

import orjson
from aiohttp import web

from gateway.introspect import json_response
from gateway.keys import POOLS
from gateway.policies import FIELDS
from gateway.routing.base import Policy
from gateway.routing.registry import UnknownPolicy, make_policy
from gateway.siblings import SIBLINGS, from_sibling
from replica.protocol.openai import RequestError


async def set_policy(request: web.Request) -> web.Response:
    """`{"policy": NAME}`, `{"shadow": NAME or null}` or both. Both begin with nothing remembered. For all
    models, or for `?model=`.

    A worker that is begun anew later takes what the settings say."""
    body = await request.read()
    changed = request.app[POOLS].chosen(request.query.get("model"))
    # Each has its own, since policies remember what they have routed.
    made = [_policies(_body(body)) for _ in changed]
    previous = changed[0].router.policy.name
    for pool, names in zip(changed, made, strict=True):
        if (policy := names.get("policy")) is not None:
            pool.router.policy = policy
        if "shadow" in names:
            pool.shadow.use(names["shadow"])
    router, shadow = changed[0].router, changed[0].shadow
    if not from_sibling(request):
        await request.app[SIBLINGS].ask("POST", str(request.rel_url), body)
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
