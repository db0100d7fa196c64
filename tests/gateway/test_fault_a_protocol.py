"""Faults of the client's protocol that the gateway meets alone, by their id in the catalogue of faults: real sockets,
and replicas that say whether anything reached them."""

import asyncio
import gzip
import json
import random
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
import zstandard

from gateway.config import GatewayConfig, Timeouts
from gateway.keys import POOLS
from replica.protocol.openai import parse_chat, parse_completion
from replica.protocol.strict import RequestError
from tests.gateway.fakes import FakeReplica, answers, answers_status, chat_body, gateway, resets, stalls
from tests.gateway.raw_http import Connection, chunked, post
from tests.gateway.stack import fleet

CHAT = "/v1/chat/completions"
GENERATING = [CHAT, "/v1/completions"]
FOR_PAGES = [*GENERATING, "/v1/models", "/v1/models/tiny", "/tokenize", "/detokenize"]
PUBLIC = [*FOR_PAGES, "/health", "/ready", "/metrics"]
GOOD = json.dumps(chat_body()).encode()
MIB = 1 << 20
LARGE = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
"""aiohttp's client, to the replica."""


@pytest.fixture
def config(model_folder: Path, redis_url: str) -> GatewayConfig:
    timeouts = Timeouts(connect_s=5, first_byte_s=3, idle_s=5, queue_s=0.3, grace_s=2)
    return GatewayConfig(model=model_folder, redis_url=redis_url, timeouts=timeouts, policy="round_robin")


@pytest.mark.parametrize(
    ("behaviour", "status"),
    [(answers_status(500), 502), (answers_status(503), 503), (answers_status(429), 503), (stalls, 504), (resets, 502)],
)
async def test_a09_failures_of_replicas_reach_clients_as_errors_they_can_read(
    config: GatewayConfig, behaviour: Any, status: int
) -> None:
    async with fleet(config, behaviour) as stack:
        client = openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0)
        async with client:
            for stream in (False, True):
                with pytest.raises(openai.APIStatusError) as error:
                    await client.chat.completions.create(**chat_body(), stream=stream)
                assert error.value.status_code == status
                assert isinstance(error.value.body, dict) and error.value.body["message"] in str(error.value)
                await asyncio.sleep(0.6)


REFUSED = {
    "unknown path": (b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n", 404),
    "unknown method": (b"PUT /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", 405),
    "too large": (post(CHAT, b"x" * (MIB + 1)), 413),
    "unknown coding": (post(CHAT, GOOD, "content-encoding: zstd9"), 415),
    "unknown type": (post(CHAT, GOOD, kind="text/plain"), 400),
    "unknown expectation": (post(CHAT, GOOD, "expect: the unexpected"), 417),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a09_what_the_http_server_refuses_by_itself_has_the_same_shape(config: GatewayConfig, name: str) -> None:
    request, status = REFUSED[name]
    async with gateway(replace(config, body_limit=MIB)) as stack, Connection(stack.url) as connection:
        answer = await connection.ask(request)
        assert answer.status == status, answer
        assert answer.error


BROKEN = [
    b"nonsense\r\n\r\n",
    b"GET /health HTTP/1.1\r\nhost: x\r\nno colon\r\n\r\n",
    b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",
    b"GET /" + b"y" * 70_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    post(CHAT, b"zz\r\n", "transfer-encoding: chunked"),
    post(CHAT, GOOD, "content-length: -5"),
]


@pytest.mark.parametrize("number", range(len(BROKEN)))
async def test_a09_what_is_no_http_is_answered_in_the_same_shape_too(config: GatewayConfig, number: int) -> None:
    async with gateway(config) as stack, Connection(stack.url) as connection:
        answer = await connection.ask(BROKEN[number])
        assert 400 <= answer.status < 500
        assert answer.error


async def test_a10_a_stream_that_can_t_begin_is_no_stream(config: GatewayConfig) -> None:
    for fields, status in (
        ({"temperature": 9}, 400),
        ({"max_tokens": 100_000}, 400),
        ({"messages": [{"role": "user", "content": "x" * 6000}]}, 400),
        ({"model": "other"}, 404),
        ({}, 503),
    ):
        async with gateway(config) as stack:
            response = await stack.chat(**({"stream": True} | fields))
            assert (response.status, response.content_type) == (status, "application/json"), fields
            assert "error" in await response.json()


ORIGIN = "https://app.example.org"


@pytest.mark.parametrize("origins", [(ORIGIN,), ("*",)])
async def test_a11_a_preflight_needs_no_key_and_errors_can_be_read(
    config: GatewayConfig, origins: tuple[str, ...]
) -> None:
    async with gateway(replace(config, cors_origins=origins, admin_key="k")) as stack:
        asked = {
            "Origin": ORIGIN,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type, x-stainless-os",
        }
        for path in FOR_PAGES:
            async with stack.http.options(stack.url + path, headers=asked) as response:
                assert response.status == 204
                assert response.headers["Access-Control-Allow-Origin"] in (ORIGIN, "*")
                allowed = response.headers["Access-Control-Allow-Methods"].split(", ")
                assert ("POST" in allowed) is (path in [*GENERATING, "/tokenize", "/detokenize"])
                assert response.headers["Access-Control-Allow-Headers"] == asked["Access-Control-Request-Headers"]
        for path, status in ((CHAT, 400), ("/v1/nowhere", 404), ("/v1/models", 405)):
            async with stack.http.post(stack.url + path, json={}, headers={"Origin": ORIGIN}) as response:
                assert (response.status, response.headers["Access-Control-Allow-Origin"]) in (
                    (status, ORIGIN),
                    (status, "*"),
                )


async def test_a11_streams_carry_the_header_and_strangers_get_none(config: GatewayConfig) -> None:
    async with fleet(replace(config, cors_origins=(ORIGIN,)), answers) as stack:
        for origin, expected in ((ORIGIN, ORIGIN), ("https://evil.example.org", None)):
            given = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            async with stack.http.post(stack.url + CHAT, json=chat_body(stream=True), headers=given) as response:
                assert response.headers.get("Access-Control-Allow-Origin") == expected
                assert response.headers["Vary"] == "Origin"
            async with stack.http.options(stack.url + CHAT, headers=given) as response:
                assert ("Access-Control-Allow-Methods" in response.headers) is (expected is not None)


async def test_a11_without_configured_origins_there_are_no_such_headers(config: GatewayConfig) -> None:
    async with gateway(config) as stack, stack.http.get(f"{stack.url}/health", headers={"Origin": ORIGIN}) as response:
        assert not [name for name in response.headers if name.lower().startswith("access-control")]


async def test_a12_models_are_told_with_replicas_down_and_by_head(config: GatewayConfig) -> None:
    async with fleet(config, answers, answers) as stack:
        for alive in (2, 1, 0):
            for _ in range(10):
                for path in ("/v1/models", "/v1/models/tiny"):
                    async with stack.http.get(stack.url + path) as response:
                        assert response.status == 200
                        data = await response.read()
                        body = json.loads(data)
                    async with stack.http.head(stack.url + path) as head:
                        assert (head.status, head.content_type, await head.read()) == (200, "application/json", b"")
                        assert int(head.headers["Content-Length"]) == len(data)
                    assert [each["id"] for each in body.get("data", [body])] == ["tiny"]
            for name in ("other", "tiny/x", "%00", "TINY"):
                async with stack.http.get(f"{stack.url}/v1/models/{name}") as response:
                    assert (response.status, (await response.json())["error"]["code"]) == (404, "model_not_found")
            if alive:
                await stack.publishers[2 - alive].beat(url="http://127.0.0.1:1")
        assert sum(len(replica.requests) for replica in stack.replicas) == 0


def packed(data: bytes, coding: str) -> bytes:
    if coding == "gzip":
        return gzip.compress(data)
    if coding == "deflate":
        return zlib.compress(data)
    if coding == "zstd":
        return zstandard.compress(data)
    raw = zlib.compressobj(wbits=-15)
    return raw.compress(data) + raw.flush()


def big_body(size: int) -> bytes:
    return json.dumps(chat_body() | {"metadata": {"padding": "ramp " * (size // 5)}}).encode()


@LARGE
@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw deflate", "zstd"])
async def test_a13_large_bodies_may_be_compressed(config: GatewayConfig, coding: str) -> None:
    """Some clients send deflate without zlib's frame."""
    data = big_body(2 * MIB)
    async with fleet(config, answers) as stack, Connection(stack.url) as connection:
        plain = await connection.ask(post(CHAT, data))
        header = f"content-encoding: {coding.split()[-1]}"
        whole = await connection.ask(post(CHAT, packed(data, coding), header))
        assert (plain.status, whole.status) == (200, 200) and plain.body == whole.body
        sent = stack.replicas[0]
        assert sent.requests[0] == sent.requests[1]
        assert "content-encoding" not in sent.seen_headers[1]
        assert sent.seen_headers[0]["content-length"] == sent.seen_headers[1]["content-length"]


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw deflate", "zstd"])
async def test_a13_a_compressed_body_that_is_cut_is_refused(config: GatewayConfig, coding: str) -> None:
    """Also where all that is missing is the checksum."""
    data = packed(big_body(MIB), coding)
    async with fleet(config, answers) as stack:
        for cut in (1, 10, len(data) // 2, len(data) - 1):
            async with Connection(stack.url) as connection:
                answer = await connection.ask(post(CHAT, data[:cut], f"content-encoding: {coding.split()[-1]}"))
                assert answer.status == 400, cut
                assert answer.error
        assert not stack.replicas[0].requests


@pytest.mark.parametrize("coding", ["br", "compress", "gzip, gzip", "x-unknown", "gzip;q=1"])
async def test_a13_other_codings_are_refused_by_name(config: GatewayConfig, coding: str) -> None:
    async with gateway(config) as stack, Connection(stack.url) as connection:
        answer = await connection.ask(post(CHAT, GOOD, f"content-encoding: {coding}"))
        assert answer.status == 415
        assert "gzip" in str(answer.error["message"]) and "deflate" in str(answer.error["message"])


async def test_a13_a_small_body_can_t_become_a_large_one(config: GatewayConfig) -> None:
    async with gateway(replace(config, body_limit=MIB)) as stack, Connection(stack.url) as connection:
        bomb = gzip.compress(b" " * (64 * MIB))
        answer = await connection.ask(post(CHAT, bomb, "content-encoding: gzip"))
        assert answer.status in (400, 413)
        assert answer.error


@LARGE
async def test_a15_megabytes_pass_and_one_byte_more_does_not(config: GatewayConfig) -> None:
    data = big_body(5 * MIB)
    async with fleet(replace(config, body_limit=len(data)), answers) as stack:
        async with Connection(stack.url) as connection:
            assert (await connection.ask(post(CHAT, data))).status == 200
            body = chunked(data)
            assert (await connection.ask(post(CHAT, body, "transfer-encoding: chunked"))).status == 200
        good = 2
        for request in (post(CHAT, data + b" "), post(CHAT, chunked(data + b" "), "transfer-encoding: chunked")):
            async with Connection(stack.url) as connection:
                answer = await connection.ask(request)
                assert answer.status == 413
                assert answer.error
                good += await good_or_closed(connection)
        assert len(stack.replicas[0].requests) == good


async def good_or_closed(connection: Connection) -> int:
    """What was not read of a refused body is never taken for the next request. Good answers: 1 or 0."""
    try:
        assert (await connection.ask(post(CHAT, GOOD))).status == 200
    except (asyncio.IncompleteReadError, ConnectionError):
        assert connection.is_closed or connection.writer.is_closing()
        return 0
    return 1


BAD_BODIES = {
    "array": b"[]",
    "string": b'"x"',
    "null": b"null",
    "empty": b"",
    "blank": b"  ",
    "garbage behind": GOOD + b" x",
    "two objects": GOOD + GOOD,
    "cut": GOOD[:-5],
    "not utf-8": GOOD.replace(b"ramp", b"\xff\xfe"),
    "overlong utf-8": GOOD.replace(b"ramp", b"\xc0\x80"),
    "utf-8 surrogate": GOOD.replace(b"ramp", b"\xed\xa0\x80"),
    "lone surrogate": GOOD.replace(b"ramp", b"\\ud800"),
    "utf-16": GOOD.decode().encode("utf-16"),
    "bom": b"\xef\xbb\xbf" + GOOD,
    "single quotes": GOOD.replace(b'"', b"'"),
    "comment": b"// x\n" + GOOD,
    "trailing comma": GOOD[:-1] + b",}",
    "brackets": b"[" * 100_000,
    "braces": b'{"a":' * 100_000,
    "nested in messages": GOOD.replace(b'"Is there a ramp?"', b"[" * 50_000 + b"]" * 50_000),
    "nested in metadata": GOOD[:-1] + b', "metadata": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}",
    "control characters": GOOD.replace(b"ramp", b"\x00\x01"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
async def test_a16_bad_bodies_are_refused_before_routing_and_hurt_nobody(config: GatewayConfig, name: str) -> None:
    async with fleet(config, answers) as stack, Connection(stack.url) as connection:
        for path in GENERATING:
            answer = await connection.ask(post(path, BAD_BODIES[name]))
            assert answer.status == 400, answer
            assert answer.error
        assert not stack.replicas[0].requests
        assert (await connection.ask(post(CHAT, GOOD))).status == 200
        assert stack.app[POOLS].first.fleet.routable(asyncio.get_running_loop().time()) == ("r1",)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
async def test_a16_other_content_types_are_refused(config: GatewayConfig, kind: str) -> None:
    async with fleet(config, answers) as stack, Connection(stack.url) as connection:
        answer = await connection.ask(post(CHAT, GOOD, kind=kind))
        assert answer.status in (400, 415) and kind.split(";")[0] in str(answer.error["message"])
        for good in ("application/json; charset=utf-8", "Application/JSON", None):
            assert (await connection.ask(post(CHAT, GOOD, kind=good))).status == 200


NUMBERS = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1e999",
    '"0.7"',
    "true",
    "[]",
    "{}",
    "1e",
    "0x1",
    "+1",
    "01",
    ".5",
]
FIELDS = ["temperature", "top_p", "seed", "max_tokens", "n", "presence_penalty", "frequency_penalty", "top_k", "min_p"]


@pytest.mark.parametrize("field", [*FIELDS, "logit_bias"])
async def test_a19_odd_numbers_are_refused(config: GatewayConfig, field: str) -> None:
    async with fleet(config, answers) as stack, Connection(stack.url) as connection:
        for number in NUMBERS:
            value = f'{{"7": {number}}}' if field == "logit_bias" else number
            body = GOOD[:-1] + f', "{field}": {value}}}'.encode()
            answer = await connection.ask(post(CHAT, body))
            assert answer.status == 400, (number, answer)
            assert answer.error["param"] in (None, field, f"{field}.7"), number
        assert not stack.replicas[0].requests


async def test_a19_large_integers_pass_exactly(config: GatewayConfig) -> None:
    async with fleet(config, answers) as stack:
        for seed in (2**53 + 1, 2**63 - 1, 2**64 - 1, -(2**63), 0):
            assert (await stack.chat(seed=seed)).status == 200
            assert stack.replicas[0].requests[-1]["seed"] == seed
        for seed in (2**64, -(2**63) - 1, 10**400):
            response = await stack.http.post(stack.url + CHAT, data=json.dumps(chat_body(seed=seed)), headers=JSON)
            assert response.status == 400, seed


JSON = {"Content-Type": "application/json"}


def test_a19_whatever_the_value_parsing_ends_in_a_request_or_a_request_error(seed: int) -> None:
    numbers = random.Random(seed)
    odd: list[Any] = [
        None,
        True,
        -1,
        0,
        2**70,
        1.5,
        1e308,
        "",
        "x",
        "\x00",
        [],
        [None],
        [[]],
        {},
        {"a": None},
        "\u2028",
    ]

    def value(depth: int) -> Any:
        if depth and numbers.random() < 0.4:
            if numbers.random() < 0.5:
                return [value(depth - 1) for _ in range(numbers.randrange(4))]
            return {numbers.choice(NAMES): value(depth - 1) for _ in range(numbers.randrange(4))}
        return numbers.choice(odd)

    for _ in range(3000):
        body = chat_body() | {numbers.choice(NAMES): value(3) for _ in range(numbers.randrange(1, 4))}
        for parse in (parse_chat, parse_completion):
            try:
                parse(json.dumps(body).encode())
            except RequestError as error:
                assert str(error)


NAMES = [
    *FIELDS,
    "messages",
    "tools",
    "tool_choice",
    "stop",
    "logit_bias",
    "response_format",
    "stream_options",
    "prompt",
]
NAMES += ["role", "content", "type", "function", "name", "json_schema", "schema", "arguments", "id", "text", "logprobs"]


@pytest.mark.parametrize("text", ["a" * MIB, "ab" * (MIB // 2), " " * MIB, "日" * (MIB // 3), "<|im_end|>" * 100_000])
async def test_a20_a_megabyte_without_a_space_stops_nobody_else(config: GatewayConfig, text: str) -> None:
    async with fleet(config, answers) as stack:
        async with Connection(stack.url) as connection:
            asking = asyncio.create_task(connection.ask(post(CHAT, json.dumps(chat_body(text)).encode()), 30))
            for _ in range(20):
                async with asyncio.timeout(5):
                    assert (await stack.http.get(f"{stack.url}/health")).status == 200
                    response = await stack.chat(stream=True)
                    assert response.status == 200 and (await response.read()).endswith(b"[DONE]\n\n")
            assert (await asking).status == 400
        assert all(len(request["prompt_token_ids"]) < 100 for request in stack.replicas[0].requests)


async def test_a20_a_prompt_just_within_the_context_is_tokenised_in_bounded_time(config: GatewayConfig) -> None:
    async with fleet(config, answers) as stack:
        async with asyncio.timeout(10):
            assert (await stack.chat("a" * 4000)).status == 200
        replica: FakeReplica = stack.replicas[0]
        assert len(replica.requests[0]["prompt_token_ids"]) >= 4000
