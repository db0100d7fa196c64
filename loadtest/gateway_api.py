"""What the load test asks of a gateway and its replicas besides completions: policy, replicas, cache resets, traces."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp
import orjson

from loadtest.client import error_message
from loadtest.errors import CompareError
from replica.protocol.records import CostModel

_POLL_S = 0.1


class Refused(CompareError):
    """An HTTP status of 400 or more."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Replica:
    """A row of the gateway's `GET /replicas`."""

    name: str
    url: str
    state: str
    epoch: str
    indexed_blocks: int
    synced: bool


@dataclass(frozen=True, slots=True)
class ReplicaShape:
    """What a replica is able to do, from a row of `GET /replicas`."""

    name: str
    cost: CostModel
    blocks: int
    """Of KV, in all."""
    max_running: int
    """0: it doesn't say."""
    order: str
    """Of prompts in its queue; empty: it doesn't say."""


class GatewayApi:
    """Every method raises CompareError where the gateway or a replica can't be reached or answers with an error."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, timeout_s: float = 10.0, admin_key: str | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self._session = session
        self._admin_headers = {} if admin_key is None else {"authorization": f"Bearer {admin_key}"}
        self._timeout_s = timeout_s
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def model(self, server_url: str | None = None) -> str:
        """The name that requests to the gateway, or to the server given, must carry."""
        url = f"{server_url or self.url}/v1/models"
        models = await self._call("GET", url)
        with _expected(url):
            return str(models["data"][0]["id"])

    async def max_context(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        url = f"{self.url}/v1/models"
        models = await self._call("GET", url)
        with _expected(url):
            return int(models["data"][0]["max_model_len"])

    async def tokens(self, text: str) -> list[int]:
        """As a prompt, without what the tokenizer adds to it."""
        url = f"{self.url}/tokenize"
        answer = await self._call("POST", url, {"prompt": text, "add_special_tokens": False})
        with _expected(url):
            return [int(token) for token in answer["tokens"]]

    async def set_policy(self, name: str) -> str:
        """Returns the name of the policy before."""
        url = f"{self.url}/admin/policy"
        state = await self._call("POST", url, {"policy": name}, self._admin_headers)
        with _expected(url):
            return str(state["previous"])

    async def ready_replicas(self) -> list[Replica]:
        rows = await self._call("GET", f"{self.url}/replicas")
        with _expected(f"{self.url}/replicas"):
            replicas = [_replica(row) for row in rows]
        ready = sorted((replica for replica in replicas if replica.state == "ready"), key=lambda replica: replica.name)
        if not ready:
            raise CompareError(f"the gateway at {self.url} has no replica that is ready (of {len(replicas)})")
        return ready

    async def fleet(self) -> list[ReplicaShape]:
        """Of the replicas that are ready, in order of name."""
        rows = await self._call("GET", f"{self.url}/replicas")
        with _expected(f"{self.url}/replicas"):
            shapes = [_shape(row) for row in rows if row["state"] == "ready"]
        if not shapes:
            raise CompareError(f"the gateway at {self.url} has no replica that is ready (of {len(rows)})")
        return sorted(shapes, key=lambda shape: shape.name)

    async def reset_caches(self) -> None:
        """Empties every replica's cache and waits until the gateway's index knows it."""
        before = {replica.name: replica for replica in await self.ready_replicas()}
        deadline = time.monotonic() + self._timeout_s
        for replica in before.values():
            await self._reset(replica, deadline)
        while stale := [
            replica.name
            for replica in await self.ready_replicas()
            if not (replica.synced and replica.indexed_blocks == 0 and _is_new(replica, before.get(replica.name)))
        ]:
            if time.monotonic() > deadline:
                raise CompareError(
                    f"{self._timeout_s:.0f} s after their caches were reset the gateway still shows old blocks for"
                    f" {', '.join(stale)}: does it read the same Redis?"
                )
            await asyncio.sleep(_POLL_S)

    async def _reset(self, replica: Replica, deadline: float) -> None:
        """A replica refuses while a request runs, and the last one ends a moment after its client has seen the end."""
        while True:
            try:
                await self._call("POST", f"{replica.url}/cache/reset")
                return
            except Refused as refused:
                if refused.status != HTTPStatus.CONFLICT or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_POLL_S)

    async def trace(self, request_id: str) -> dict[str, Any]:
        """A request's timeline, once it is complete: its events in order, and KV entries a layer over time."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            trace = await self._call("GET", f"{self.url}/trace/{request_id}")
            with _expected(f"{self.url}/trace/{request_id}"):
                if any(event["event"] == "done" for event in trace["events"]):
                    return {
                        "events": sorted(trace["events"], key=lambda event: float(event["at_s"])),
                        "kv": [[float(at_s), int(entries)] for at_s, entries in trace.get("kv") or ()],
                    }
            if time.monotonic() > deadline:
                raise CompareError(f"the trace of request {request_id} isn't complete after {self._timeout_s:.0f} s")
            await asyncio.sleep(_POLL_S)

    async def _call(
        self, method: str, url: str, body: Any = None, extra_headers: Mapping[str, str] | None = None
    ) -> Any:
        data = None if body is None else orjson.dumps(body)
        headers = dict(extra_headers or {})
        if data is not None:
            headers["content-type"] = "application/json"
        try:
            async with self._session.request(
                method, url, data=data, headers=headers, timeout=self._timeout
            ) as response:
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise CompareError(f"can't reach {url}: {error or type(error).__name__}") from error
        if response.status >= 400:
            raise Refused(f"{method} {url} answers HTTP {response.status}: {error_message(answer)}", response.status)
        if not answer:
            return {}
        try:
            return orjson.loads(answer)
        except orjson.JSONDecodeError as error:
            raise CompareError(f"{method} {url} answers no JSON: {answer[:80]!r}") from error


def _replica(row: Any) -> Replica:
    return Replica(
        name=str(row["id"]),
        url=str(row["url"]).rstrip("/"),
        state=str(row["state"]),
        epoch=str(row["epoch"]),
        indexed_blocks=int(row["indexed_blocks"]),
        synced=bool(row["synced"]),
    )


def _shape(row: Any) -> ReplicaShape:
    cost = row["cost"]
    return ReplicaShape(
        name=str(row["id"]),
        cost=CostModel(
            float(cost["c0"]),
            float(cost["c_lin"]),
            float(cost["c_att"]),
            float(cost["c_dec"]),
            int(cost["max_step_tokens"]),
        ),
        blocks=int(row["load"]["total_blocks"]),
        max_running=int(row.get("max_running", 0)),
        order=str(row.get("order", "")),
    )


@contextmanager
def _expected(url: str) -> Iterator[None]:
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise CompareError(f"{url} answers in an unknown shape ({type(error).__name__}: {error})") from error


def _is_new(replica: Replica, before: Replica | None) -> bool:
    return before is None or replica.epoch != before.epoch
