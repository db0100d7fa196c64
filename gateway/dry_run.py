"""Where a request would go, and why, without sending it anywhere; and what a shadow policy has been saying."""

from typing import Any

import orjson
from aiohttp import web

from gateway.bodies import read_body
from gateway.errors import NoReplica
from gateway.explain import decision_explained
from gateway.handlers import Parsed, check, parse_for, prompt_of, route_request, total_tokens
from gateway.introspect import json_response
from gateway.keys import CLOCK, POOLS
from gateway.pools import Pool
from gateway.routing.base import Policy
from gateway.routing.registry import UnknownPolicy, make_policy
from replica.protocol import openai


async def dry_run(request: web.Request) -> web.Response:
    """Takes what the generating endpoints take. `?endpoint=chat` or `completion` says which, else the body's fields do;
    `?policy=NAME` asks another policy: the live one or the shadow by its name, else a fresh one.

    Changes nothing: no lease, no trace, no metric, no expectation, no policy's memory. Raises NoReplica.
    """
    app = request.app
    parsed = _parsed(await read_body(request), request.query.get("endpoint"))
    pool = app[POOLS].of(parsed.model)
    check(parsed, pool.text)
    if isinstance(parsed, openai.CompletionRequest) and len(parsed.prompts) > 1:
        raise openai.RequestError("prompt: each prompt is routed by itself; ask about one", "prompt")
    prompt = await prompt_of(pool.tokenizer, parsed)
    openai.output_limit(prompt.length, parsed.max_new_tokens, pool.context_limit.at(app[CLOCK]()))
    policy = _policy(pool, request.query.get("policy"))
    tokens = total_tokens(prompt, parsed.max_new_tokens)
    asked = route_request(request.headers, parsed, prompt)
    considered = pool.router.consider(asked, tokens, frozenset(), app[CLOCK](), policy)
    if considered is None:
        states = {replica: status.state for replica, status in pool.fleet.statuses(app[CLOCK]()).items()}
        raise NoReplica(f"no replica could take it now; there are {states or 'none'}")
    return json_response({"dry_run": True, **decision_explained(considered)})


def _parsed(body: bytes, endpoint: str | None) -> Parsed:
    if endpoint is None:
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            value = None
        # What isn't JSON, or has neither field, gets the error of the chat endpoint.
        endpoint = "completion" if isinstance(value, dict) and "prompt" in value else "chat"
    return parse_for(endpoint)(body)


def _policy(pool: Pool, name: str | None) -> Policy | None:
    """None: the live one."""
    if name is None or name == pool.router.policy.name:
        return None
    shadow = pool.shadow.policy
    if shadow is not None and shadow.name == name:
        return shadow
    try:
        return make_policy(name)
    except UnknownPolicy as error:
        raise openai.RequestError(str(error), param="policy", code="invalid_value") from error


async def shadow_table(request: web.Request) -> web.Response:
    """Means over the requests that both policies have decided. Of `?model=`, else of the first."""
    app = request.app
    pool = app[POOLS].of(request.query.get("model"))
    shadow, tally = pool.shadow.policy, pool.shadow.tally
    table: dict[str, Any] = {
        "policy": pool.router.policy.name,
        "shadow": None if shadow is None else shadow.name,
        "requests": 0,
        "disagreements": 0,
    }
    if shadow is None or tally is None or tally.live != pool.router.policy.name:
        return json_response(table)
    count = tally.requests
    rows = [
        {
            "role": role,
            "policy": name,
            "predicted_ttft_s": round(tally.wait_s[role] / count, 6),
            "predicted_cached_tokens": round(tally.cached_tokens[role] / count, 1),
        }
        for role, name in (("live", tally.live), ("shadow", shadow.name))
    ]
    return json_response(
        table
        | {
            "requests": count,
            "disagreements": tally.disagreements,
            "disagreement_rate": round(tally.disagreements / count, 4),
            "for_s": round(app[CLOCK]() - tally.since, 1),
            "shadow_ttft_difference_s": round((tally.wait_s["shadow"] - tally.wait_s["live"]) / count, 6),
            "shadow_cached_tokens_difference": round(
                (tally.cached_tokens["shadow"] - tally.cached_tokens["live"]) / count, 1
            ),
            "means": rows,
        }
    )
