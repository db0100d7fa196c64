"""Upstreams that aren't ours: any OpenAI server. They publish nothing, so they are asked whether they are there, and
stand in the fleet by heartbeats that are made up here: of their own they have no load and no cost but what we send.

Nor is there a digest. An empty one stands in for it, so that what we have routed there can be expected in the index.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from gateway.fleet import NOMINAL, Fleet
from gateway.identity import Identity
from gateway.index.prefix_index import PrefixIndex
from gateway.served import ServedModel
from gateway.upstream import REFUSED
from gateway.upstream_keys import FILE_SETTING, KEY_VARIABLE, UpstreamKeys
from gateway.upstream_urls import named_upstreams
from replica.protocol.hashing import BLOCK_SIZE, HASH_VERSION
from replica.protocol.records import Heartbeat, ReplicaState, Snapshot

log = logging.getLogger(__name__)

EPOCH = "upstream"
FAILURES_OUT = 2
SUCCESSES_IN = 2
ANSWER_MAX_BYTES = 1 << 20
_PROBE_LIMIT_S = 2.0


class ProbeFailed(Exception):
    """The text says why."""


@dataclass(frozen=True, slots=True)
class Found:
    """By a probe."""

    models: dict[str, int | None]
    """By the name that the upstream takes: its context in tokens, where it tells. Empty: it doesn't list them."""


@dataclass(slots=True)
class Hysteresis:
    """Whether one is in rotation: its first success brings it in, later so many in a row do, as of failures out."""

    is_in: bool = False
    _was_in: bool = False
    _in_a_row: int = 0
    _last: bool | None = None

    def take(self, ok: bool) -> bool:
        """The outcome of a probe; whether it is in."""
        self._in_a_row = self._in_a_row + 1 if ok == self._last else 1
        self._last = ok
        if ok and not self.is_in:
            self.is_in = not self._was_in or self._in_a_row >= SUCCESSES_IN
        elif not ok and self.is_in:
            self.is_in = self._in_a_row < FAILURES_OUT
        self._was_in = self._was_in or self.is_in
        return self.is_in


class Prober:
    def __init__(
        self,
        served: ServedModel,
        interval_s: float,
        keys: UpstreamKeys,
        identity: Identity,
        max_context: int,
        fleet: Fleet,
        index: PrefixIndex,
    ) -> None:
        self._urls = named_upstreams(served.upstreams)
        self._model = served.name
        self._interval_s = interval_s
        self.keys = keys
        self.failures: dict[str, str] = {}
        """By upstream: why its last probe failed."""
        self._identity = identity
        self._max_context = max_context
        self._fleet = fleet
        self._index = index

    async def run(self, on_change: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Until cancelled. `on_change` is called whenever an upstream may have become routable."""
        limit = aiohttp.ClientTimeout(total=max(_PROBE_LIMIT_S, self._interval_s))
        async with aiohttp.ClientSession(timeout=limit) as session, asyncio.TaskGroup() as tasks:
            for name, url in self._urls.items():
                tasks.create_task(self._watch(session, name, url, on_change, clock))

    async def _watch(
        self,
        session: aiohttp.ClientSession,
        name: str,
        url: str,
        on_change: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        state, logged = Hysteresis(), ""
        for beats in itertools.count(1):
            found = None
            try:
                found = await probe(session, url, self.keys.headers(url))
                self.failures.pop(name, None)
            except ProbeFailed as failure:
                self.failures[name] = str(failure)
            is_in = state.take(found is not None)
            if is_in and found is not None:
                logged = ""
                self._announce(self._heartbeat(name, url, found, beats), clock())
                on_change()
            elif not is_in and found is None and logged != self.failures[name]:
                logged = self.failures[name]
                if beats == 1:
                    # So that it is seen where one looks for it.
                    self._fleet.announce(self._heartbeat(name, url, Found({}), beats), clock())
                self._fleet.withdraw(name)
                log.warning("upstream %s is out of rotation: %s", name, logged)
            await asyncio.sleep(self._interval_s)

    def _announce(self, heartbeat: Heartbeat, now: float) -> None:
        if self._index.position(heartbeat.replica) is None:
            log.info("upstream %s serves %r", heartbeat.replica, heartbeat.model)
            self._index.load(heartbeat.replica, Snapshot(EPOCH, 0, "0-0", b"", (0, 0)))
        self._fleet.announce(heartbeat, now)

    def _heartbeat(self, name: str, url: str, found: Found, beats: int) -> Heartbeat:
        """As ours would be, were it one of our replicas."""
        model = self._model if self._model in found.models else next(iter(found.models), self._model)
        identity = self._identity
        return Heartbeat(
            replica=name,
            url=url,
            state=ReplicaState.READY,
            model=model,
            model_fingerprint=identity.model_fingerprint,
            tokenizer_fingerprint=identity.tokenizer_fingerprint,
            template_fingerprint=identity.template_fingerprint,
            canary_plain=identity.canary_plain,
            canary_chat=identity.canary_chat,
            hash_version=HASH_VERSION,
            block_size=BLOCK_SIZE,
            max_context=found.models.get(model) or self._max_context,
            epoch=EPOCH,
            cost=NOMINAL,
            beats=beats,
        )


async def probe(session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> Found:
    """By the list of its models; a server that keeps none is asked for its health, which tells nothing of one that
    wants another key. Raises ProbeFailed."""
    status, body = await _get(session, f"{url}/v1/models", headers)
    if status == 200:
        return Found(parse_models(body))
    if status in REFUSED:
        wrong = "refuses the API key from" if headers else "wants an API key; give it one by"
        raise ProbeFailed(f"/v1/models answers {status}: it {wrong} {FILE_SETTING} or {KEY_VARIABLE}")
    health, _ = await _get(session, f"{url}/health", headers)
    if health != 200:
        raise ProbeFailed(f"/v1/models answers {status}, /health {health}")
    return Found({})


def parse_models(body: bytes) -> dict[str, int | None]:
    """As in OpenAI's list, with the context where vLLM and SGLang write it. Raises ProbeFailed."""
    try:
        listed: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ProbeFailed(f"/v1/models: no JSON: {error}") from error
    models = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(models, list):
        raise ProbeFailed("/v1/models: no list of models in `data`")
    found: dict[str, int | None] = {}
    for model in models:
        if isinstance(model, dict) and isinstance(model.get("id"), str):
            context = model.get("max_model_len")
            found[model["id"]] = context if isinstance(context, int) and context > 0 else None
    return found


async def _get(session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
    try:
        async with session.get(url, headers=headers, allow_redirects=False) as answer:
            body = await answer.content.read(ANSWER_MAX_BYTES + 1)
            while len(body) <= ANSWER_MAX_BYTES and (more := await answer.content.readany()):
                body += more
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ProbeFailed(str(error) or type(error).__name__) from error
    if len(body) > ANSWER_MAX_BYTES:
        raise ProbeFailed(f"an answer of more than {ANSWER_MAX_BYTES} bytes")
    return answer.status, body
