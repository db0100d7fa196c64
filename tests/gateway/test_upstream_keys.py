"""API keys that upstreams want: shown to them, and to nobody else."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.app import make_app
from gateway.config import ConfigError, GatewayConfig
from gateway.keys import POOLS
from gateway.settings import load
from gateway.upstream_keys import KEY_VARIABLE, UpstreamKeys, UpstreamKeysError, load_upstream_keys
from replica.protocol.text import ModelText
from tests.gateway.fakes import chat_body, eventually, serving
from tests.gateway.test_keys import bearer
from tests.gateway.test_probes import OpenAIServer
from tests.gateway.test_reload import put
from tests.processes import Process

ONE, TWO, WRONG, CLIENTS = (f"sk-MARKER-{name}-0123456789" for name in ("one", "two", "wrong", "clients"))
URLS = ("http://host1:8000", "http://host2:8000/v1")


class Guarded(OpenAIServer):
    """Wants a key, also for the list of its models; in its anger it repeats the one that it was shown."""

    def __init__(self, key: str | None, model: str = "tiny") -> None:
        super().__init__(model)
        self.key = key
        self.shown: set[str | None] = set()
        self.status = 401
        self.generates = True
        self.refused = 0

    def app(self) -> web.Application:
        app = super().app()
        app.middlewares.append(self._look)
        return app

    @web.middleware
    async def _look(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        given = request.headers.get("authorization")
        if request.path == "/health":
            return await handler(request)
        self.shown.add(given)
        generates = request.method == "POST"
        if (generates and not self.generates) or (self.key is not None and given != f"Bearer {self.key}"):
            self.refused += 1
            return web.json_response({"error": f"Incorrect API key provided: {given}"}, status=self.status)
        return await handler(request)


@asynccontextmanager
async def standing(*servers: OpenAIServer) -> AsyncIterator[list[str]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(serving(server.app())) for server in servers]


@asynccontextmanager
async def gateway(config: GatewayConfig, read: Callable[[], GatewayConfig] | None = None) -> AsyncIterator["Gateway"]:
    texts = [ModelText.load(served.folder, served.name) for served in config.served]
    app = make_app(config, texts, load=read)
    async with serving(app) as url, aiohttp.ClientSession() as http:
        yield Gateway(app, url, http)


class Gateway:
    def __init__(self, app: web.Application, url: str, http: aiohttp.ClientSession) -> None:
        self.app, self.url, self.http = app, url, http

    async def rows(self) -> dict[str, Any]:
        """By URL: state and reason."""
        async with self.http.get(f"{self.url}/replicas") as answer:
            return {row["url"]: (row["state"], row["reason"]) for row in await answer.json()}

    async def ready(self, *urls: str) -> None:
        async with asyncio.timeout(10):
            while {url for url, (state, _) in (await self.rows()).items() if state == "ready"} != set(urls):
                await asyncio.sleep(0.02)

    async def chat(self, text: str = "Is there a ramp?", **fields: Any) -> tuple[int, str]:
        url, given = f"{self.url}/v1/chat/completions", bearer(CLIENTS)
        async with self.http.post(url, json=chat_body(text, **fields), headers=given) as answer:
            return answer.status, await answer.text()


def keys_file(folder: Path, **keys: str) -> Path:
    path = folder / "upstream-keys.toml"
    put(path, "".join(f'"{url}" = "{key}"\n' for url, key in keys.items()))
    return path


def settings(folder: Path, model: Path, urls: list[str], more: str = "") -> Path:
    path = folder / "gateway.toml"
    put(path, f'tokenizer = "{model}"\nserved_model_name = "tiny"\nprobe_interval = 0.02\nupstream = {urls}\n{more}')
    return path


def test_each_upstream_has_its_own_key_or_that_of_all(tmp_path: Path) -> None:
    path = keys_file(tmp_path, **{"http://host2:8000/": TWO})
    keys = load_upstream_keys(path, URLS, {KEY_VARIABLE: f" {ONE}\n"})
    assert [keys.headers(url) for url in ("http://host1:8000", "http://host2:8000")] == [
        {"authorization": f"Bearer {ONE}"},
        {"authorization": f"Bearer {TWO}"},
    ]
    assert load_upstream_keys(path, URLS, {}).headers("http://host1:8000") == {}
    assert load_upstream_keys(None, (), {}) == UpstreamKeys()
    assert "MARKER" not in repr(keys)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'"{ONE}" = "http://host1:8000"', r"entry 1 is not .* these are http://host1:8000, http://host2:8000"),
        (f'"{URLS[0]}" = "{ONE}"\n"{URLS[0]}/" = "{ONE}"', "entry 2 is of an upstream that has one already"),
        (f'"{URLS[0]}" = "{ONE}\\r\\nx: y"', "entry 1: a key is a string of printable ASCII"),
        (f'"{URLS[0]}" = "{ONE}ü"', "entry 1: a key is"),
        (f'"{URLS[0]}" = ""', "entry 1: a key is"),
        (f'"{URLS[0]}" = ["{ONE}"]', "entry 1: a key is"),
        (f'"{URLS[0]}" = {ONE}', r"it is no TOML \(at line 1"),
        (None, "No such file"),
    ],
)
def test_what_is_wrong_is_named_and_not_quoted(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "upstream-keys.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UpstreamKeysError, match=said) as refused:
        load_upstream_keys(path, URLS, {})
    assert "MARKER" not in str(refused.value) and str(path) in str(refused.value)


def test_a_variable_that_is_no_key() -> None:
    with pytest.raises(UpstreamKeysError, match=KEY_VARIABLE) as refused:
        load_upstream_keys(None, URLS, {KEY_VARIABLE: f"{ONE} {TWO}"})
    assert "MARKER" not in str(refused.value)


def test_they_are_a_setting_of_one_model_and_of_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, TWO)
    path = keys_file(tmp_path, **{URLS[0]: ONE})
    one = load(None, {"tokenizer": "m", "upstream": list(URLS), "upstream_keys_file": path})
    several = tmp_path / "gateway.toml"
    several.write_text(
        f'upstream_keys_file = "{path.name}"\n'
        + "".join(f'[models.m{number}]\nmodel = "m"\nupstream = ["{url}"]\n' for number, url in enumerate(URLS))
    )
    for config in (one, load(several, {})):
        assert config.upstream_keys == UpstreamKeys({URLS[0]: ONE}, TWO)
        assert path in config.files
    with pytest.raises(ConfigError, match="entry 1 is not"):
        load(None, {"tokenizer": "m", "upstream": [URLS[1]], "upstream_keys_file": path})


async def test_probes_and_requests_show_it_and_the_clients_own_goes_nowhere(model_folder: Path, tmp_path: Path) -> None:
    servers = Guarded(ONE), Guarded(None)
    async with standing(*servers) as urls:
        path = keys_file(tmp_path, **{urls[0]: ONE})
        read = partial(load, settings(tmp_path, model_folder, urls, f'upstream_keys_file = "{path.name}"\n'), {})
        async with gateway(read()) as made:
            await made.ready(*urls)
            for number in range(40):
                assert (await made.chat(f"{number} is a number of its own. " * 8))[0] == 200
                if all(server.requests for server in servers):
                    break
        assert all(server.requests for server in servers)
        assert [server.shown for server in servers] == [{f"Bearer {ONE}"}, {None}]


@pytest.mark.parametrize("status", [401, 403])
async def test_the_log_and_the_replicas_say_that_a_key_is_missing_or_wrong(
    model_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    servers = Guarded(ONE), Guarded(TWO)
    for server in servers:
        server.status = status
    async with standing(*servers) as urls:
        path = keys_file(tmp_path, **{urls[1]: WRONG})
        read = partial(load, settings(tmp_path, model_folder, urls, f'upstream_keys_file = "{path.name}"\n'), {})
        async with gateway(read(), read) as made:
            await eventually(lambda: len([1 for each in caplog.records if each.name == "gateway.probes"]) == 2)
            said = [
                f"/v1/models answers {status}: it {wrong} upstream_keys_file or RYOKAN_UPSTREAM_KEY"
                for wrong in ("wants an API key; give it one by", "refuses the API key from")
            ]
            assert await made.rows() == {url: ("gone", why) for url, why in zip(urls, said, strict=True)}
            assert all(why in caplog.text for why in said)
            # What is put right counts without a restart, and what is wrong again, too.
            caplog.clear()
            caplog.set_level(logging.INFO, "gateway.reload")
            keys_file(tmp_path, **{urls[0]: ONE, urls[1]: TWO})
            await made.ready(*urls)
            assert "settings read again: changed upstream_keys" in caplog.text
            assert await made.rows() == {url: ("ready", None) for url in urls}
            keys_file(tmp_path, **{urls[0]: ONE, urls[1]: WRONG})
            await made.ready(urls[0])
            assert (await made.rows())[urls[1]] == ("gone", said[1])
    assert "MARKER" not in caplog.text


async def test_a_request_that_one_refuses_goes_to_another_and_else_the_client_learns_whose_key_it_is(
    model_folder: Path, tmp_path: Path
) -> None:
    refusing, well = Guarded(None), Guarded(None)
    refusing.generates = False
    async with standing(refusing, well) as urls, gateway(load(settings(tmp_path, model_folder, urls), {})) as made:
        await made.ready(*urls)
        for number in range(40):
            assert (await made.chat(f"{number} is a number of its own. " * 8))[0] == 200
            if refusing.refused:
                break
        assert refusing.refused
        well.generates = False
        status, body = await made.chat()
        assert (status, "upstream_refused" in body, "Incorrect" in body) == (502, True, False)


async def test_several_models_each_with_upstreams_that_want_keys(model_folder: Path, tmp_path: Path) -> None:
    servers = Guarded(ONE, "theirs1"), Guarded(TWO, "theirs2")
    async with standing(*servers) as urls:
        path = keys_file(tmp_path, **dict(zip(urls, (ONE, TWO), strict=True)))
        file = tmp_path / "gateway.toml"
        file.write_text(
            f'upstream_keys_file = "{path.name}"\nprobe_interval = 0.02\n'
            + "".join(
                f'[models.m{number}]\nmodel = "{model_folder}"\nupstream = ["{url}"]\n'
                for number, url in enumerate(urls)
            )
        )
        async with gateway(load(file, {})) as made:
            await made.ready(*urls)
            assert [pool.name for pool in made.app[POOLS]] == ["m0", "m1"]
            assert [(await made.chat(model=f"m{number}"))[0] for number in (0, 1)] == [200, 200]


async def test_f11_an_upstreams_key_is_found_nowhere_else(model_folder: Path, tmp_path: Path) -> None:
    servers = Guarded(ONE), Guarded(TWO), Guarded(TWO)
    servers[1].generates = False
    async with standing(*servers) as urls, aiohttp.ClientSession() as http:
        keys = keys_file(tmp_path, **dict(zip(urls, (ONE, TWO, WRONG), strict=True)))
        more = f'upstream_keys_file = "{keys.name}"\nport = 0\nlog_level = "debug"\naccess_log = "access.log"\n'
        file = settings(tmp_path, model_folder, urls, more)
        process = Process(["gateway", "--config", str(file)], tmp_path / "log")
        try:
            url = await asyncio.to_thread(process.wait_for, r"gateway ready on (http\S+)")
            await asyncio.to_thread(process.wait_for, r"(refuses the API key)")
            seen = []
            for number in range(8):
                given = bearer(CLIENTS) | {"x-request-id": f"r{number}"}
                body = chat_body(f"{number} and so on", stream=number % 2 == 0)
                async with http.post(f"{url}/v1/chat/completions", json=body, headers=given) as answer:
                    seen += [str(answer.headers), await answer.text()]
            paths = ["/replicas", "/metrics", "/route/shadow", "/ready", "/openapi.json"]
            paths += [f"/{what}/r{number}" for number in range(8) for what in ("route/explain", "trace")]
            for path in paths:
                async with http.get(url + path) as answer:
                    assert answer.status == 200, path
                    seen.append(await answer.text())
            put(keys, f'"{WRONG}" = "{ONE}"\n')
            await asyncio.to_thread(process.wait_for, "(nothing is changed: the upstream keys file)")
            seen.append(Path(f"/proc/{process.pid}/cmdline").read_text())
        finally:
            assert await asyncio.to_thread(process.stop) == 0
    seen += [process.said, (tmp_path / "access.log").read_text()]
    assert servers[0].requests and f"Bearer {ONE}" in servers[0].shown
    assert [text for text in seen if "MARKER" in text] == []
