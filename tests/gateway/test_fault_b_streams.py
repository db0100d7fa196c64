"""Faults of streams, by their id in the catalogue of faults. Characters that span tokens (B01, B02) are the engine's
matter: tests/replica/test_detokenizer.py; shapes of chunks (B13): tests/e2e/test_fault_a_answers.py. Events that are
cut anywhere (B11) need no socket, and are tested beside the relay."""

import asyncio
import gzip
import json
import socket
import struct
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.config import GatewayConfig, Timeouts
from gateway.keys import BUDGET, POOLS
from tests.gateway.fakes import (
    Behaviour,
    FakeReplica,
    answers,
    chat_body,
    event,
    eventually,
    open_stream,
    stalls,
    stalls_in_stream,
)
from tests.gateway.raw_http import Connection, post
from tests.gateway.stack import fleet

CHAT = "/v1/chat/completions"
DONE = b"data: [DONE]\n\n"


@pytest.fixture
def config(model_folder: Path, redis_url: str) -> GatewayConfig:
    timeouts = Timeouts(connect_s=5, first_byte_s=5, idle_s=5, queue_s=2, grace_s=2)
    return GatewayConfig(model=model_folder, redis_url=redis_url, timeouts=timeouts, policy="round_robin")


def body(stream: bool) -> bytes:
    return json.dumps(chat_body(stream=stream)).encode()


@pytest.mark.parametrize("way", ["fin", "reset"])
@pytest.mark.parametrize(
    ("case", "behaviour", "stream"),
    [
        ("b03 within the stream", stalls_in_stream, True),
        ("b04 before the first token", stalls, True),
        ("b04 a whole answer", stalls, False),
    ],
)
async def test_b03_b04_a_client_that_leaves_frees_all_within_a_second(
    config: GatewayConfig, case: str, behaviour: Behaviour, stream: bool, way: str
) -> None:
    async with fleet(config, behaviour) as stack:
        tasks = len(asyncio.all_tasks())
        connection = Connection(stack.url)
        async with connection:
            connection.writer.write(post(CHAT, body(stream)))
            await eventually(lambda: stack.replicas[0].live == 1)
            if behaviour is stalls_in_stream:
                assert await connection.reader.readuntil(b"one ")
            if way == "reset":
                sock = connection.writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.writer.transport.abort()
        await eventually(lambda: stack.replicas[0].aborted == 1, timeout_s=5)
        pool = stack.app[POOLS].first
        await eventually(lambda: pool.fleet.statuses(0)["r1"].leases == 0 and stack.app[BUDGET].live == 0, 5)
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks, timeout_s=5)


async def test_b04_a_client_that_leaves_while_nobody_is_there_stops_waiting(config: GatewayConfig) -> None:
    patient = replace(config, timeouts=replace(config.timeouts, queue_s=60))
    async with fleet(patient) as stack:
        async with Connection(stack.url) as connection:
            connection.writer.write(post(CHAT, body(False)))
            await eventually(lambda: stack.app[BUDGET].live == 1)
        await eventually(lambda: stack.app[BUDGET].live == 0, timeout_s=5)


async def one_each_second(replica: FakeReplica, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
    response = await open_stream(request)
    for number in range(3):
        await response.write(event(f"{number} "))
        await asyncio.sleep(0.5)
    await response.write(DONE)
    return response


async def test_b06_an_event_leaves_before_the_next_exists(config: GatewayConfig) -> None:
    async with fleet(config, one_each_second) as stack:
        clock, times = asyncio.get_running_loop().time, list[float]()
        async with stack.http.post(stack.url + CHAT, json=chat_body(stream=True)) as response:
            assert "no-transform" in response.headers["Cache-Control"]
            assert response.headers["X-Accel-Buffering"] == "no"
            async for _ in response.content.iter_any():
                times.append(clock())
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert len(gaps) == 3 and all(gap > 0.25 for gap in gaps), gaps


def dies_after(data: bytes, way: str) -> Behaviour:
    async def behave(replica: FakeReplica, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        response = await open_stream(request)
        if data:
            await response.write(data)
        await asyncio.sleep(0.05)
        assert request.transport is not None
        if way == "reset":
            sock = request.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            request.transport.abort()
        else:
            request.transport.close()
        return response

    return behave


FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'


@pytest.mark.parametrize("way", ["fin", "reset"])
@pytest.mark.parametrize(
    "data", [b"", event("one "), event("one ") + b"data: {", event("one ") + b"\r", event("one ") + FINISH]
)
async def test_b07_a_replica_that_dies_is_told_in_the_stream(config: GatewayConfig, data: bytes, way: str) -> None:
    # Where nothing has reached the client, it is worth while to wait for another replica.
    timeouts = replace(config.timeouts, queue_s=0.3)
    async with fleet(replace(config, timeouts=timeouts), dies_after(data, way)) as stack:
        async with asyncio.timeout(2):
            whole = await (await stack.chat(stream=True)).read()
        *events, error, done, rest = whole.split(b"\n\n")
        assert (done + b"\n\n", rest) == (DONE, b"")
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "replica_died"
        assert b'"finish_reason":"stop"' not in b"".join(events) or FINISH in data
        page = await (await stack.http.get(f"{stack.url}/metrics")).text()
        assert "ryokan_gateway_broken_streams_total 1.0" in page


async def test_b07_what_the_client_has_is_not_sent_again_whatever_its_lines_end_in(config: GatewayConfig) -> None:
    dies = dies_after(event("one ").replace(b"\n", b"\r\n"), "fin")
    async with fleet(config, dies, dies) as stack:
        whole = await (await stack.chat(stream=True)).read()
        assert whole.count(b"one ") == 1 and b"replica_died" in whole
        assert sum(len(replica.requests) for replica in stack.replicas) == 1


def says(data: bytes, then: str) -> Behaviour:
    """A stream of these bytes, and then: its end, silence on an open connection, or more bytes."""

    async def behave(replica: FakeReplica, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        response = await open_stream(request)
        await response.write(data)
        if then == "silence":
            await replica.gate.wait()
        elif then != "end":
            for _ in range(3):
                await response.write(then.encode())
                await asyncio.sleep(0.02)
        return response

    return behave


@pytest.mark.parametrize(
    ("data", "then"),
    [
        (event("one ") + FINISH, "end"),
        (event("one ") + FINISH + DONE, "silence"),
        (event("one ") + FINISH + DONE, event("late").decode()),
        (event("one ") + FINISH + DONE + DONE, "end"),
        (event("one ") + FINISH + DONE + event("late"), "end"),
    ],
)
async def test_b09_the_client_gets_one_done_and_the_end(config: GatewayConfig, data: bytes, then: str) -> None:
    async with fleet(config, says(data, then)) as stack:
        for _ in range(2):
            async with asyncio.timeout(3):
                whole = await (await stack.chat(stream=True)).read()
            assert whole == event("one ") + FINISH + DONE
        stack.replicas[0].gate.set()


def gzips(kind: str) -> Behaviour:
    """Compresses whatever is asked for."""

    async def behave(replica: FakeReplica, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        value = (
            {"error": {"message": "no", "type": "x", "param": None, "code": None}} if kind == "error" else {"a": "b"}
        )
        data = event("one ") + DONE if kind == "stream" else json.dumps(value).encode()
        content_type = "text/event-stream" if kind == "stream" else "application/json"
        return web.Response(
            body=gzip.compress(data),
            status=400 if kind == "error" else 200,
            headers={"Content-Encoding": "gzip", "Content-Type": content_type},
        )

    return behave


@pytest.mark.parametrize("accepted", ["gzip", "identity"])
@pytest.mark.parametrize("kind", ["whole", "stream", "error"])
async def test_b12_an_answer_is_never_labelled_as_what_it_isn_t(
    config: GatewayConfig, kind: str, accepted: str
) -> None:
    """The replica was asked for plain bytes; one that packs them nonetheless must not reach the client as text."""
    async with fleet(config, gzips(kind)) as stack:
        given = {"Accept-Encoding": accepted}
        async with stack.http.post(
            stack.url + CHAT, json=chat_body(stream=kind == "stream"), headers=given
        ) as response:
            data = await response.read()
        assert stack.replicas[0].seen_headers[0]["accept-encoding"] == "identity"
        if response.headers.get("Content-Encoding") is None:
            assert data[:2] != b"\x1f\x8b", "packed bytes without a label"
        if response.status == 200 and kind == "whole":
            assert json.loads(data)["a"] == "b"


async def test_an_honest_answer_has_its_own_length(config: GatewayConfig) -> None:
    async with fleet(config, answers) as stack, Connection(stack.url) as connection:
        for _ in range(3):
            answer = await connection.ask(post(CHAT, body(False), "accept-encoding: gzip, deflate, br"))
            assert answer.status == 200 and json.loads(answer.body)["object"] == "chat.completion"
