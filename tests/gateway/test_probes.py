import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from gateway.app import make_app
from gateway.config import GatewayConfig, Timeouts
from gateway.keys import POOLS
from gateway.probes import Hysteresis, ProbeFailed, parse_models, probe
from replica.protocol import headers
from replica.protocol.text import ModelText
from tests.gateway.fakes import chat_body, event, serving

INTERVAL_S = 0.02


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not check():
            await asyncio.sleep(0.01)


def test_two_failures_take_one_out_and_two_successes_bring_it_back() -> None:
    state = Hysteresis()
    outcomes = [False, True, False, True, False, False, True, False, True, True, False]
    assert [state.take(ok) for ok in outcomes] == [
        *(False, True, True, True, True, False),
        *(False, False, False, True, True),
    ]


@pytest.mark.parametrize(
    ("body", "models"),
    [
        (b'{"data": [{"id": "a", "max_model_len": 4096}, {"id": "b"}]}', {"a": 4096, "b": None}),
        (b'{"data": [{"id": 1}, 7, {"id": "a", "max_model_len": "x"}]}', {"a": None}),
        (b'{"data": []}', {}),
    ],
)
def test_a_list_of_models(body: bytes, models: dict[str, int | None]) -> None:
    assert parse_models(body) == models


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"data": {}}'])
def test_no_list_of_models(body: bytes) -> None:
    with pytest.raises(ProbeFailed, match="/v1/models"):
        parse_models(body)


class OpenAIServer:
    """An engine that knows nothing of us."""

    def __init__(self, model: str = "theirs") -> None:
        self.model = model
        self.is_well = True
        self.lists_models = True
        self.requests: list[dict[str, Any]] = []
        self.answer: Callable[[web.Request], Awaitable[web.StreamResponse]] = self._answer

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_post("/v1/chat/completions", self._generate)
        app.router.add_post("/v1/completions", self._generate)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        if not self.lists_models:
            raise web.HTTPNotFound
        if not self.is_well:
            raise web.HTTPServiceUnavailable
        return web.json_response({"object": "list", "data": [{"id": self.model, "max_model_len": 2048}]})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_well else 503)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(orjson.loads(await request.read()))
        return await self.answer(request)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if not self.requests[-1].get("stream"):
            return web.json_response({"object": "chat.completion", "choices": []})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(event("hello") + b"data: [DONE]\n\n")
        return response


class Lab:
    """A gateway without Redis, in front of servers that aren't ours."""

    def __init__(self, app: web.Application, url: str, http: aiohttp.ClientSession, names: list[str]) -> None:
        self.app, self.url, self.http, self.names = app, url, http, names

    def routable(self) -> list[str]:
        return list(self.app[POOLS].first.fleet.routable(asyncio.get_running_loop().time()))

    async def chat(self, text: str = "Is there a ramp?", **fields: Any) -> aiohttp.ClientResponse:
        answer = await self.http.post(f"{self.url}/v1/chat/completions", json=chat_body(text, **fields))
        await answer.read()
        return answer


@asynccontextmanager
async def lab(folder: Path, *servers: OpenAIServer) -> AsyncIterator[Lab]:
    async with (
        aiohttp.ClientSession() as http,
        serving(servers[0].app()) as first,
        serving(servers[-1].app()) as last,
    ):
        urls = [first, last] if len(servers) > 1 else [first]
        timeouts = Timeouts(grace_s=1.0)
        config = GatewayConfig(folder, upstreams=tuple(urls), probe_interval_s=INTERVAL_S, timeouts=timeouts)
        app = make_app(config, [ModelText.load(folder, "tiny")])
        async with serving(app) as url:
            made = Lab(app, url, http, [url.removeprefix("http://") for url in urls])
            await until(lambda: made.routable() == sorted(made.names))
            yield made


async def test_text_goes_to_an_upstream_as_the_client_sent_it_and_under_its_own_models_name(model_folder: Path) -> None:
    server = OpenAIServer("theirs")
    async with lab(model_folder, server) as made:
        answer = await made.chat(max_tokens=5, stop="x")
        assert answer.status == 200 and answer.headers[headers.REPLICA] == made.names[0]
        assert server.requests[0] == chat_body(max_tokens=5, stop=["x"]) | {"model": "theirs"}
        answer = await made.http.post(f"{made.url}/v1/completions", json={"model": "tiny", "prompt": "Hotels"})
        assert answer.status == 200
        assert server.requests[1] == {"model": "theirs", "prompt": "Hotels"}


async def test_streams_and_what_looks_at_the_fleet(model_folder: Path) -> None:
    async with lab(model_folder, OpenAIServer("tiny")) as made:
        answer = await made.chat(stream=True)
        assert (await answer.read()).endswith(event("hello") + b"data: [DONE]\n\n")
        assert (await made.http.get(f"{made.url}/ready")).status == 200
        (row,) = await (await made.http.get(f"{made.url}/replicas")).json()
        assert (row["id"], row["state"], row["publishes"], row["in_flight"]) == (made.names[0], "ready", False, 0)
        models = await (await made.http.get(f"{made.url}/v1/models")).json()
        assert [(model["id"], model["max_model_len"]) for model in models["data"]] == [("tiny", 2048)]
        assert (await made.http.get(f"{made.url}/metrics")).status == 200


async def test_a_prompt_is_expected_where_it_was_sent_and_follows_there(model_folder: Path) -> None:
    async with lab(model_folder, OpenAIServer(), OpenAIServer()) as made:
        text = "Is there a ramp at the back door? " * 20
        first = await made.chat(text)
        # Longer than expectations last where a digest could confirm them.
        made.app[POOLS].first.index.expire(
            asyncio.get_running_loop().time() + 3600, hold=made.app[POOLS].first.fleet.unheard
        )
        for _ in range(4):
            again = await made.chat(text)
            assert again.headers[headers.REPLICA] == first.headers[headers.REPLICA]
            assert int(again.headers[headers.CACHED_TOKENS]) > 400


async def test_load_is_counted_by_leases(model_folder: Path) -> None:
    gate = asyncio.Event()
    servers = OpenAIServer(), OpenAIServer()

    async def waits(request: web.Request) -> web.StreamResponse:
        await gate.wait()
        return web.json_response({"choices": []})

    for server in servers:
        server.answer = waits
    async with lab(model_folder, *servers) as made:
        tasks = []
        for number in range(6):
            tasks.append(asyncio.create_task(made.chat(f"{number} is a number of its own. " * 8)))
            await until(lambda: sum(len(server.requests) for server in servers) == len(tasks))
        assert [len(server.requests) for server in servers] == [3, 3]
        await asyncio.sleep(5 * INTERVAL_S)
        assert all(status.leases == 3 for status in made.app[POOLS].first.fleet.statuses(0).values())
        gate.set()
        assert [answer.status for answer in await asyncio.gather(*tasks)] == [200] * 6


async def test_one_that_fails_its_probes_is_out_until_it_is_well_again(model_folder: Path) -> None:
    sick, well = OpenAIServer(), OpenAIServer()
    async with lab(model_folder, sick, well) as made:
        sick.is_well = False
        await until(lambda: made.routable() == [made.names[1]])
        asked = len(sick.requests)
        for number in range(4):
            assert (await made.chat(f"{number} and so on")).status == 200
        assert len(sick.requests) == asked
        sick.is_well, sick.lists_models = True, False
        await until(lambda: made.routable() == sorted(made.names))


async def test_a_broken_one_is_passed_over_until_a_probe_has_found_it_again(model_folder: Path) -> None:
    broken, well = OpenAIServer(), OpenAIServer()

    async def breaks(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    broken.answer = breaks
    async with lab(model_folder, broken, well) as made:
        # Which of two equals is taken, a hash of prompt and name decides: until the broken one has had its turn.
        for number in range(40):
            answer = await made.chat(f"{number} is a number of its own. " * 8)
            assert (answer.status, answer.headers[headers.REPLICA]) == (200, made.names[1])
            if broken.requests:
                break
        assert broken.requests
        await until(lambda: made.routable() == sorted(made.names))


async def test_a_probe_says_what_is_wrong() -> None:
    server = OpenAIServer()
    async with aiohttp.ClientSession() as http:
        async with serving(server.app()) as url:
            assert (await probe(http, url, {})).models == {"theirs": 2048}
            server.lists_models = False
            assert (await probe(http, url, {})).models == {}
            server.is_well = False
            with pytest.raises(ProbeFailed, match="/v1/models answers 404, /health 503"):
                await probe(http, url, {})
        with pytest.raises(ProbeFailed):
            await probe(http, url, {})
