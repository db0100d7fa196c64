import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from yarl import URL

from gateway.config import ConfigError, GatewayConfig
from gateway.cors import cors_headers
from tests.gateway.fakes import answers, chat_body
from tests.gateway.stack import fleet
from tests.gateway.test_keys import ALICE, bearer, write_keys

PAGE = "https://chat.example"


@pytest.fixture
def config(model_folder: Path, redis_url: str, tmp_path: Path) -> GatewayConfig:
    keys = write_keys(tmp_path / "keys.toml")
    return GatewayConfig(model=model_folder, redis_url=redis_url, keys_file=keys, cors_origins=(PAGE,))


async def test_a11_a_preflight_needs_no_key_and_a_401_can_be_read(config: GatewayConfig) -> None:
    async with fleet(config, answers) as stack:
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-any"}
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/tiny", "/tokenize"):
            method = "GET" if "models" in path else "POST"
            response = await stack.http.options(stack.url + path, headers={"Origin": PAGE} | asked)
            assert response.status == 204
            assert response.headers["Access-Control-Allow-Origin"] == PAGE
            assert method in response.headers["Access-Control-Allow-Methods"].split(", ")
            assert response.headers["Access-Control-Allow-Headers"] == "authorization,x-any"
            response = await stack.http.request(method, stack.url + path, headers={"Origin": PAGE})
            assert response.status == 401
            assert response.headers["Access-Control-Allow-Origin"] == PAGE
        body = chat_body(stream=True)
        url = f"{stack.url}/v1/chat/completions"
        response = await stack.http.post(url, json=body, headers={"Origin": PAGE} | bearer(ALICE))
        assert response.status == 200
        assert response.headers["Access-Control-Allow-Origin"] == PAGE
        assert "x-request-id" in response.headers["Access-Control-Expose-Headers"]
        assert (await response.read()).endswith(b"data: [DONE]\n\n")


async def test_a11_other_origins_and_other_paths_get_nothing(config: GatewayConfig) -> None:
    asked = {"Access-Control-Request-Method": "POST"}
    for origins in ((), (PAGE,)):
        async with fleet(replace(config, cors_origins=origins), answers) as stack:
            for origin, path in (("https://evil.example", "/v1/chat/completions"), (PAGE, "/admin/policy")):
                response = await stack.http.options(stack.url + path, headers={"Origin": origin} | asked)
                assert response.status == 405
                assert "Access-Control-Allow-Origin" not in response.headers
            response = await stack.http.options(f"{stack.url}/v1/none", headers={"Origin": PAGE} | asked)
            assert response.status == 404


def test_all_origins() -> None:
    given = cors_headers("/v1/models", {"origin": "https://any"}, ("*",))
    assert given["Access-Control-Allow-Origin"] == "*"
    assert cors_headers("/v1/models", {}, ("*",)) == {}
    assert cors_headers("/metrics", {"origin": "https://any"}, ("*",)) == {}


@pytest.mark.parametrize("origin", ["example.org", "https://a/b", "https://", "null"])
def test_what_is_no_origin_is_refused(config: GatewayConfig, origin: str) -> None:
    with pytest.raises(ConfigError, match="cors_origins"):
        replace(config, cors_origins=(origin,))


async def test_who_just_asks_for_the_methods_is_told(config: GatewayConfig) -> None:
    async with fleet(replace(config, cors_origins=()), answers) as stack:
        for path, methods in (
            ("/v1/chat/completions", "OPTIONS, POST"),
            ("/tokenize", "OPTIONS, POST"),
            ("/v1/models/tiny", "GET, HEAD, OPTIONS"),
            ("/health", "GET, HEAD, OPTIONS"),
        ):
            async with stack.http.options(stack.url + path, headers={"Origin": PAGE}) as response:
                assert (response.status, response.headers["Allow"], await response.read()) == (204, methods, b"")
                assert "Access-Control-Allow-Origin" not in response.headers


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
def test_for_a_stranger_nothing_but_that_answers_differ_by_origin(origin: str) -> None:
    assert cors_headers("/v1/models", {"origin": origin}, (PAGE,)) == {"Vary": "Origin"}


async def test_a_page_can_read_that_its_body_is_too_long(config: GatewayConfig) -> None:
    async with fleet(config, answers) as stack:
        for path in ("/v1/chat/completions", "/v1/models"):
            for origin, allowed in ((PAGE, PAGE), ("https://evil.example", None)):
                reader, writer = await asyncio.open_connection("127.0.0.1", URL(stack.url).port)
                head = f"POST {path} HTTP/1.1\r\nhost: x\r\norigin: {origin}\r\ncontent-length: 99999999999\r\n\r\n"
                writer.write(head.encode())
                answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                writer.close()
                assert answer.startswith("http/1.1 413 ")
                assert ("access-control-allow-origin: " in answer) == (allowed is not None)
                assert allowed is None or f"access-control-allow-origin: {allowed}\r\n" in answer
