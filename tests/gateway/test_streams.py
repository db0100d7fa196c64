"""Streams through the whole gateway, where replicas and clients misbehave."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import zstandard
from aiohttp import web

from gateway.config import GatewayConfig, Timeouts
from gateway.keys import BUDGET, POOLS, UPSTREAM
from tests.gateway import fakes
from tests.gateway.fakes import (
    FakeReplica,
    Stack,
    answers,
    answers_status,
    chat_body,
    event,
    eventually,
    gateway,
    open_stream,
    stalls,
    stalls_in_stream,
)
from tests.gateway.stack import error_of, fleet

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"


@pytest.fixture(params=["lean", "aiohttp"], autouse=True)
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(fakes, "SERVER", request.param)
    return str(request.param)


@pytest.fixture
def config(model_folder: Path, redis_url: str) -> GatewayConfig:
    timeouts = Timeouts(connect_s=5, first_byte_s=5, idle_s=5, queue_s=5, grace_s=2, keep_alive_s=0.3)
    return GatewayConfig(model=model_folder, redis_url=redis_url, timeouts=timeouts, policy="round_robin")


def raw_events(*pieces: bytes, ends: bool = True) -> fakes.Behaviour:
    """These bytes, then the answer's end, or none."""

    async def behave(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await open_stream(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(0.01)
        if not ends:
            await replica.gate.wait()
        return response

    return behave


async def test_b06_a_silent_stream_gets_comments(config: GatewayConfig) -> None:
    async with fleet(config, stalls_in_stream) as stack:
        response = await stack.chat(stream=True)
        assert await response.content.readexactly(len(event("one "))) == event("one ")
        assert await response.content.readexactly(2 * len(COMMENT)) == 2 * COMMENT
        stack.replicas[0].gate.set()
        assert await response.read() == event("two ") + DONE


async def test_b06_a_stream_begins_with_comments_where_its_first_token_is_late(config: GatewayConfig) -> None:
    async with fleet(config, stalls) as stack:
        response = await stack.chat(stream=True)
        assert (response.status, response.content_type) == (200, "text/event-stream")
        assert response.headers["x-ryokan-replica"] == "r1"
        assert await response.content.readexactly(len(COMMENT)) == COMMENT
        stack.replicas[0].gate.set()
        body = (await response.read()).replace(COMMENT, b"")
        assert body == event("one ") + event("two ") + event("r1") + DONE


@pytest.mark.parametrize("status", [500, 422])
async def test_b06_a_late_failure_is_an_event_and_an_early_one_is_a_status(config: GatewayConfig, status: int) -> None:
    async def fails_late(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await replica.gate.wait()
        return await answers_status(status)(replica, request, body)

    async with fleet(config, fails_late) as stack:
        late = await stack.chat(stream=True)
        assert late.status == 200
        stack.replicas[0].gate.set()
        *_, error, done, rest = (await late.read()).split(b"\n\n")
        assert (done + b"\n\n", rest) == (DONE, b"")
        assert json.loads(error.removeprefix(b"data: "))["error"]["message"]
        early = await stack.chat(stream=True)
        assert early.status in (status, 502, 503)
        await error_of(early)


async def test_b06_a_replica_that_fails_late_is_made_good_by_another(config: GatewayConfig) -> None:
    async def fails_late(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.6)
        return await answers_status(500)(replica, request, body)

    async with fleet(config, fails_late, answers) as stack:
        bodies = [await (await stack.chat(stream=True)).read() for _ in range(2)]
        assert all(body.replace(COMMENT, b"") == event("one ") + event("two ") + event("r2") + DONE for body in bodies)
        assert any(body.startswith(COMMENT) for body in bodies)


async def test_b06_a_whole_answer_may_take_its_time(config: GatewayConfig) -> None:
    async with fleet(config, stalls) as stack:
        asking = asyncio.create_task(stack.chat())
        await asyncio.sleep(0.8)
        stack.replicas[0].gate.set()
        assert (await asking).status == 200


@pytest.mark.parametrize(
    "behaviour",
    [
        raw_events(event("a")),
        raw_events(event("a") + DONE, ends=False),
        raw_events(event("a"), DONE, event("junk"), ends=False),
    ],
    ids=["no DONE", "DONE and then open", "data after DONE"],
)
async def test_b09_the_client_gets_one_done_and_the_next_request_a_right_answer(
    config: GatewayConfig, behaviour: fakes.Behaviour
) -> None:
    async with fleet(config, behaviour) as stack:
        for _ in range(3):
            async with asyncio.timeout(30):
                body = await (await stack.chat(stream=True)).read()
                assert body.replace(COMMENT, b"") == event("a") + DONE
        stack.replicas[0].gate.set()


async def test_streams_that_end_well_share_a_connection(config: GatewayConfig) -> None:
    async with fleet(config, answers) as stack:
        for _ in range(5):
            assert (await (await stack.chat(stream=True)).read()).endswith(DONE)
            await asyncio.sleep(0.05)
        assert len(stack.app[UPSTREAM].pool) == 1


async def test_b07_a_break_after_done_is_none(config: GatewayConfig) -> None:
    async def dies_after_done(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await open_stream(request)
        await response.write(event("a") + DONE)
        assert request.transport is not None
        request.transport.abort()
        return response

    async with fleet(config, dies_after_done) as stack:
        assert await (await stack.chat(stream=True)).read() == event("a") + DONE
        assert stack.app[POOLS].first.fleet.routable(asyncio.get_running_loop().time()) == ("r1",)


@pytest.mark.parametrize("stream", [False, True])
async def test_b04_clients_that_leave_before_the_first_byte_leave_nothing_behind(
    config: GatewayConfig, stream: bool
) -> None:
    async with fleet(config, stalls) as stack:
        tasks = [asyncio.create_task(stack.chat(f"q{number}", stream=stream)) for number in range(20)]
        await eventually(lambda: stack.replicas[0].live == 20)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await eventually(lambda: stack.replicas[0].aborted == 20, timeout_s=5)
        assert stack.app[BUDGET].live == 0
        assert len(stack.app[UPSTREAM].pool) == 0


async def test_b04_a_client_that_leaves_while_it_waits_for_a_replica(config: GatewayConfig) -> None:
    async with gateway(config) as stack:
        task = asyncio.create_task(stack.chat())
        await eventually(lambda: stack.app[BUDGET].live == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await eventually(lambda: stack.app[BUDGET].live == 0, timeout_s=5)


async def test_a_client_that_reads_nothing_stops_its_replica_and_no_other(config: GatewayConfig) -> None:
    """What is under way is bounded; the others' streams go on."""
    written = 0

    async def floods(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal written
        response = await open_stream(request)
        for _ in range(40_000):
            await response.write(event("x" * 1000))
            written += 1
        await response.write(DONE)
        return response

    async with fleet(config, floods, answers) as stack, aiohttp.ClientSession(read_bufsize=1024) as http:
        slow = await http.post(f"{stack.url}/v1/chat/completions", json=chat_body(stream=True))
        before = -1
        while before != written:
            before = written
            await asyncio.sleep(0.3)
        assert 0 < written < 20_000
        await stack.publishers[0].beat(state="draining")
        await stack.publishers[0].announce()
        other = await stack.chat(stream=True)
        assert (await other.read()).endswith(DONE)
        assert len(await slow.read()) >= 40_000 * 1000


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw deflate"])
async def test_a13_a_large_compressed_body_is_as_good_as_a_plain_one(config: GatewayConfig, encoding: str) -> None:
    body = json.dumps(chat_body("w" * 2000, user="u" * 1_000_000)).encode()
    packed = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "raw deflate": lambda data: zlib.compress(data)[2:-4],
    }[encoding](body)
    headers = {"Content-Encoding": encoding.split()[-1], "Content-Type": "application/json"}
    async with fleet(config, answers) as stack:
        url = f"{stack.url}/v1/chat/completions"
        assert (await stack.http.post(url, data=packed, headers=headers)).status == 200
        assert (await stack.http.post(url, data=body, headers={"Content-Type": "application/json"})).status == 200
        cut = await stack.http.post(url, data=packed[: len(packed) // 2], headers=headers)
        assert cut.status == 400
        await error_of(cut)
        plain, compressed = stack.replicas[0].requests
        assert plain == compressed
        assert all("content-encoding" not in seen for seen in stack.replicas[0].seen_headers)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_a13_a_bomb_is_refused(config: GatewayConfig, encoding: str) -> None:
    bomb = (gzip.compress if encoding == "gzip" else zstandard.compress)(b" " * 20_000_000)
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    async with gateway(config) as stack:
        response = await stack.http.post(f"{stack.url}/v1/completions", data=bomb, headers=headers)
        assert response.status == 413
        await error_of(response)


def bad_bodies() -> Iterator[bytes]:
    yield from (b"", b"[]", b"null", b"1", b"{", b"{} x", b'{"model": "\xff"}', b"[" * 100_000, b'{"a":' * 100_000)
    for value in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b'"0.7"', b"true"):
        yield b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "temperature": ' + value + b"}"


async def test_a16_bad_bodies_are_400_and_the_connection_serves_on(config: GatewayConfig) -> None:
    headers = {"Content-Type": "application/json"}
    async with fleet(config, answers) as stack, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as http:
        url = f"{stack.url}/v1/chat/completions"
        for body in bad_bodies():
            async with http.post(url, data=body, headers=headers) as response:
                assert response.status == 400, body[:50]
                await error_of(response)
        assert not stack.replicas[0].requests
        async with http.post(url, json=chat_body()) as response:
            assert response.status == 200


async def test_b12_what_a_replica_compressed_all_the_same_can_be_read(config: GatewayConfig) -> None:
    async def compresses(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.json_response({"choices": []})
        response.enable_compression(web.ContentCoding.gzip)
        return response

    async with fleet(config, compresses) as stack:
        response = await stack.http.post(
            f"{stack.url}/v1/chat/completions", json=chat_body(), headers={"Accept-Encoding": "gzip"}
        )
        assert await response.json() == {"choices": []}


async def test_f11_a_client_s_key_doesn_t_reach_a_replica(config: GatewayConfig) -> None:
    async with fleet(config, answers) as stack:
        headers = {"Authorization": "Bearer secret-marker", "Cookie": "secret-marker", "x-other": "secret-marker"}
        response = await stack.http.post(f"{stack.url}/v1/chat/completions", json=chat_body(), headers=headers)
        assert response.status == 200
        assert "secret-marker" not in str(stack.replicas[0].seen_headers)


async def test_f06_hundreds_of_slow_streams_all_go_on(config: GatewayConfig) -> None:
    patient = replace(config, policy="ttft", timeouts=Timeouts())
    async with fleet(patient, stalls_in_stream, stalls_in_stream) as stack:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            quiet = Stack(stack.url, stack.app, stack.redis, http)
            responses = await asyncio.gather(*(quiet.chat(f"q{number}", stream=True) for number in range(300)))
            for replica in stack.replicas:
                replica.gate.set()
            bodies = await asyncio.gather(*(response.read() for response in responses))
        assert {body.replace(COMMENT, b"") for body in bodies} == {event("one ") + event("two ") + DONE}
