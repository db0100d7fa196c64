"""The gateway as a whole: real sockets, a real Valkey, replicas that misbehave."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.config import GatewayConfig, Timeouts
from gateway.keys import POOLS, TRACES
from tests.gateway import fakes
from tests.gateway.fakes import (
    Behaviour,
    FakeReplica,
    Stack,
    answers,
    answers_status,
    blocks,
    chat_body,
    dies_in_body,
    event,
    eventually,
    gateway,
    publisher_for,
    resets,
    stalls,
    stalls_in_stream,
)
from tests.gateway.stack import error_of, fleet


@pytest.fixture
def config(model_folder: Path, redis_url: str) -> GatewayConfig:
    timeouts = Timeouts(connect_s=5, first_byte_s=5, idle_s=5, queue_s=5, grace_s=2)
    return GatewayConfig(model=model_folder, redis_url=redis_url, timeouts=timeouts, policy="round_robin")


@pytest.fixture(params=["lean", "aiohttp"], autouse=True)
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both servers pass the same tests; the slower one is the oracle."""
    monkeypatch.setattr(fakes, "SERVER", request.param)
    return str(request.param)


async def explain(stack: Stack, response: aiohttp.ClientResponse) -> Any:
    explained = await stack.http.get(f"{stack.url}/route/explain/{response.headers['x-request-id']}")
    assert explained.status == 200
    return await explained.json()


async def test_an_answer_passes_through_with_the_gateway_s_headers(config: GatewayConfig) -> None:
    async with fleet(config, answers) as stack:
        response = await stack.chat(max_tokens=7, temperature=0)
        assert response.status == 200
        assert (await response.json())["choices"][0]["message"]["content"] == "r1"
        assert response.headers["x-ryokan-replica"] == "r1"
        assert response.headers["x-ryokan-policy"] == "round_robin"
        assert response.headers["x-ryokan-cached-tokens"] == "0"
        assert response.headers["x-ryokan-reason"] == "only"
        assert "x-ryokan-predicted-ttft" not in response.headers
        assert response.headers["x-ryokan-delivered-tokens"] == "16"
        [sent] = stack.replicas[0].requests
        assert "messages" not in sent
        assert sent["prompt_token_ids"] and sent["max_tokens"] == 7 and sent["model"] == "tiny"
        [seen] = stack.replicas[0].seen_headers
        assert seen["x-request-id"] == response.headers["x-request-id"]
        assert seen["accept-encoding"] == "identity"


async def test_what_a_request_asks_for_reaches_the_replica_as_it_was(config: GatewayConfig) -> None:
    fields: dict[str, Any] = {
        "n": 3,
        "seed": 2**53 + 1,
        "logit_bias": {"7": -1.5},
        "stop": ["a", "b"],
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"const": None}}},
        "logprobs": True,
        "top_logprobs": 2,
        "cache_salt": "s",
        "priority": -3,
    }
    async with fleet(config, answers) as stack:
        assert (await stack.chat(**fields)).status == 200
        [sent] = stack.replicas[0].requests
        assert {name: sent[name] for name in fields} == fields


async def test_a_stream_is_relayed_byte_for_byte(config: GatewayConfig) -> None:
    async with fleet(config, answers) as stack:
        response = await stack.chat(stream=True)
        assert response.headers["Cache-Control"] == "no-cache, no-transform"
        assert response.headers["X-Accel-Buffering"] == "no"
        assert await response.read() == event("one ") + event("two ") + event("r1") + b"data: [DONE]\n\n"


@pytest.mark.parametrize("behaviour", [resets, answers_status(500), answers_status(503)])
async def test_a_failure_before_the_first_byte_goes_to_another_replica(
    config: GatewayConfig, behaviour: Behaviour
) -> None:
    async with fleet(config, behaviour, answers) as stack:
        for _ in range(4):
            response = await stack.chat()
            assert response.status == 200
            assert response.headers["x-ryokan-replica"] == "r2"
        assert len(stack.replicas[1].requests) == 4


async def test_a_replica_that_can_t_be_reached_is_left_out(config: GatewayConfig) -> None:
    async with fleet(config, answers, answers) as stack:
        await stack.publishers[0].beat(url="http://127.0.0.1:1")
        await asyncio.sleep(0.4)
        for _ in range(4):
            assert (await stack.chat()).headers["x-ryokan-replica"] == "r2"


async def test_no_replica_is_tried_twice(config: GatewayConfig) -> None:
    async with fleet(config, *[answers_status(500)] * 3) as stack:
        response = await stack.chat()
        assert response.status == 502
        assert (await error_of(response))["code"] == "replica_failed"
        assert [len(replica.requests) for replica in stack.replicas] == [1, 1, 1]
        explained = await explain(stack, response)
        assert [attempt["failure"] for attempt in explained["attempts"]] == ["5xx"] * 3
        assert explained["outcome"]["text"] == "failed: 5xx"
        assert response.headers["x-ryokan-reason"] == explained["reason"] == "retry"
        assert response.headers["x-ryokan-replica"] == explained["replica"]


async def test_all_replicas_busy_is_a_503_with_retry_after(config: GatewayConfig) -> None:
    async with fleet(config, answers_status(503), answers_status(429)) as stack:
        response = await stack.chat()
        assert response.status == 503
        assert response.headers["Retry-After"] == "1"
        assert (await error_of(response))["code"] == "replicas_busy"


async def test_a_4xx_passes_through_and_says_nothing_about_health(config: GatewayConfig) -> None:
    async with fleet(config, answers_status(422)) as stack:
        for _ in range(10):
            response = await stack.chat()
            assert response.status == 422
            assert (await error_of(response))["message"] == "fake 422"
        assert stack.app[POOLS].first.fleet.routable(asyncio.get_running_loop().time()) == ("r1",)


@pytest.mark.parametrize(("stream", "behaviour"), [(False, stalls), (True, stalls), (True, stalls_in_stream)])
async def test_a_client_that_leaves_cancels_the_replica_s_work(
    config: GatewayConfig, stream: bool, behaviour: Behaviour
) -> None:
    async with fleet(config, behaviour) as stack:

        async def ask() -> None:
            async with stack.http.post(f"{stack.url}/v1/chat/completions", json=chat_body(stream=stream)) as response:
                await response.read()

        task = asyncio.create_task(ask())
        await eventually(lambda: stack.replicas[0].live == 1)
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await eventually(lambda: stack.replicas[0].aborted == 1, timeout_s=5)
        await eventually(lambda: stack.app[POOLS].first.fleet.statuses(0)["r1"].leases == 0)


async def test_a_stream_that_breaks_ends_in_an_error_event_and_done(config: GatewayConfig) -> None:
    async with fleet(config, dies_in_body, answers) as stack:
        response = await stack.chat(stream=True)
        body = await response.read()
        first, error, done, rest = body.split(b"\n\n")
        assert first + b"\n\n" == event("one ")
        assert error.startswith(b'data: {"error":{') and b"replica_died" in error
        assert (done, rest) == (b"data: [DONE]", b"")
        assert not stack.replicas[1].requests


async def test_a_whole_answer_that_breaks_is_made_good_by_another_replica(config: GatewayConfig) -> None:
    async with fleet(config, dies_in_body, answers) as stack:
        response = await stack.chat()
        assert response.status == 200
        assert response.headers["x-ryokan-replica"] == "r2"


async def test_a_retry_waits_for_those_before_it_longer_than_for_a_replica(config: GatewayConfig) -> None:
    """A replica's death fails nothing, where others take longer to a first byte than one may wait for a replica."""
    impatient = replace(config, timeouts=replace(config.timeouts, queue_s=0.2, first_byte_s=30))

    async def takes_its_time(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.5)
        return await answers(replica, request, body)

    async with fleet(impatient, resets, takes_its_time) as stack:
        # One retry at a time: a fifth of the live requests.
        responses = await asyncio.gather(*(stack.chat() for _ in range(4)))
        assert [response.status for response in responses] == [200] * 4
        assert len(stack.replicas[0].requests) == 2


async def test_silence_before_the_first_byte_ends_in_another_try(config: GatewayConfig) -> None:
    quick = replace(config, timeouts=replace(config.timeouts, first_byte_s=0.3))
    async with fleet(quick, stalls, answers) as stack:
        assert (await stack.chat()).headers["x-ryokan-replica"] == "r2"


async def test_silence_within_a_stream_ends_in_an_error_event(config: GatewayConfig) -> None:
    quick = replace(config, timeouts=replace(config.timeouts, idle_s=0.3))
    async with fleet(quick, stalls_in_stream) as stack:
        body = await (await stack.chat(stream=True)).read()
        assert b"replica_timeout" in body and body.endswith(b"data: [DONE]\n\n")


async def test_a_request_waits_for_a_replica_to_appear(config: GatewayConfig) -> None:
    async with gateway(config) as stack, FakeReplica("late", answers).serving() as replica:
        waiting = asyncio.create_task(stack.chat())
        await asyncio.sleep(0.3)
        publisher = publisher_for(stack.redis, replica, config.model)
        async with publisher.serving():
            await publisher.announce()
            async with asyncio.timeout(2):
                response = await waiting
            assert response.headers["x-ryokan-replica"] == "late"


async def test_without_a_replica_the_wait_ends_in_a_503(config: GatewayConfig) -> None:
    impatient = replace(config, timeouts=replace(config.timeouts, queue_s=0.2))
    async with gateway(impatient) as stack:
        response = await stack.chat(stream=True)
        assert response.status == 503
        assert response.headers["Retry-After"] == "1"
        assert (await error_of(response))["code"] == "no_replica"


async def test_a_replica_whose_heartbeat_expires_leaves_rotation(config: GatewayConfig) -> None:
    async with gateway(config) as stack, FakeReplica("r1", answers).serving() as replica:
        publisher = publisher_for(stack.redis, replica, config.model)
        await publisher.beat()
        await eventually(lambda: stack.app[POOLS].first.fleet.present() == ("r1",))
        await eventually(lambda: stack.app[POOLS].first.fleet.present() == (), timeout_s=4)
        assert (await stack.http.get(f"{stack.url}/ready")).status == 503


async def test_a_draining_replica_gets_nothing_new(config: GatewayConfig) -> None:
    async with fleet(config, stalls_in_stream, answers) as stack:
        streaming = asyncio.create_task(stack.chat(stream=True))
        await eventually(lambda: stack.replicas[0].live == 1)
        publisher = stack.publishers[0]
        await publisher.beat(state="draining")
        await publisher.announce()
        now = asyncio.get_running_loop().time
        await eventually(lambda: stack.app[POOLS].first.fleet.routable(now()) == ("r2",))
        for _ in range(3):
            assert (await stack.chat()).headers["x-ryokan-replica"] == "r2"
        stack.replicas[0].gate.set()
        assert (await (await streaming).read()).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nowhere", None, 404),
        ("GET", "/v1/chat/completions", None, 405),
        ("POST", "/v1/chat/completions", b" " * 250_000, 413),
        ("POST", "/v1/chat/completions", b"[]", 400),
        ("POST", "/v1/chat/completions", b"", 400),
        ("POST", "/v1/chat/completions", b"{} x", 400),
        ("POST", "/v1/chat/completions", b'{"model": "\xff"}', 400),
        ("POST", "/v1/chat/completions", b"[" * 100_000, 400),
        ("GET", "/v1/models/other", None, 404),
        ("GET", "/route/explain/none", None, 404),
        ("GET", "/trace/none", None, 404),
        ("GET", "/ready", None, 503),
        ("POST", "/admin/policy", b'{"policy": "nonsense"}', 400),
        ("POST", "/admin/policy", b"[]", 400),
    ],
)
async def test_every_error_has_openai_s_shape(
    config: GatewayConfig, method: str, path: str, body: bytes | None, status: int
) -> None:
    async with gateway(replace(config, body_limit=200_000)) as stack:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        response = await stack.http.request(method, stack.url + path, data=body, headers=headers)
        assert response.status == status
        await error_of(response)


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        ({"model": "other"}, 404, None, "model_not_found"),
        ({"prompt_token_ids": [1, 2]}, 400, "prompt_token_ids", "invalid_value"),
        ({"max_tokens": 100_000}, 400, "max_tokens", "context_length_exceeded"),
        ({"temperature": "0.7"}, 400, "temperature", "invalid_value"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, 400, "messages", "context_length_exceeded"),
        ({"nonsense": 1}, 400, "nonsense", "invalid_value"),
        ({"logit_bias": {"100000": 1}}, 400, "logit_bias", "invalid_value"),
        ({"stop_token_ids": [-1]}, 400, "stop_token_ids", "invalid_value"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tools", "invalid_value"),
        ({"messages": [{"role": "tool", "tool_call_id": "1", "content": "x"}]}, 400, "messages", "invalid_value"),
    ],
)
async def test_a_bad_request_never_reaches_a_replica(
    config: GatewayConfig, fields: dict[str, Any], status: int, param: str | None, code: str
) -> None:
    async with fleet(config, answers) as stack:
        response = await stack.chat(**fields)
        assert response.status == status
        error = await error_of(response)
        assert (error["param"], error["code"]) == (param, code)
        assert not stack.replicas[0].requests


async def test_token_ids_of_a_completion_are_checked_against_the_vocabulary(config: GatewayConfig) -> None:
    async with fleet(config, answers) as stack:
        url = f"{stack.url}/v1/completions"
        good = await stack.http.post(url, json={"model": "tiny", "prompt": [1, 2, 3]})
        assert good.status == 200
        assert stack.replicas[0].requests[0]["prompt_token_ids"] == [1, 2, 3]
        for token in (-1, 10_000):
            bad = await stack.http.post(url, json={"model": "tiny", "prompt": [1, token]})
            assert bad.status == 400
            assert str(token) in (await error_of(bad))["message"]


@pytest.mark.parametrize(("given", "kept"), [("a-B_9", True), ("x" * 65, False), ("a b", False), ("", False)])
async def test_only_a_plain_request_id_is_taken_from_the_client(config: GatewayConfig, given: str, kept: bool) -> None:
    async with fleet(config, answers) as stack:
        response = await stack.http.post(
            f"{stack.url}/v1/chat/completions", json=chat_body(), headers={"x-request-id": given}
        )
        assert (response.headers["x-request-id"] == given) is kept


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_compressed_bodies_are_decoded_and_broken_ones_refused(config: GatewayConfig, encoding: str) -> None:
    async with fleet(config, answers) as stack:
        url = f"{stack.url}/v1/chat/completions"
        packed = await stack.http.post(url, json=chat_body(), compress=encoding)
        assert packed.status == 200
        assert "content-encoding" not in stack.replicas[0].seen_headers[0]
        broken = await stack.http.post(
            url, data=b"\x00nonsense", headers={"Content-Encoding": encoding, "Content-Type": "application/json"}
        )
        assert broken.status == 400
        await error_of(broken)


async def test_an_unknown_content_encoding_is_a_415(config: GatewayConfig) -> None:
    async with gateway(config) as stack:
        response = await stack.http.post(
            f"{stack.url}/v1/chat/completions", data=b"x", headers={"Content-Encoding": "zstd9"}
        )
        assert response.status == 415
        await error_of(response)


async def test_looking_in_from_outside(config: GatewayConfig) -> None:
    async with fleet(config, answers, answers) as stack:
        answer = await stack.http.post(
            f"{stack.url}/v1/chat/completions", json=chat_body(), headers={"x-ryokan-trace": "1"}
        )
        request_id = answer.headers["x-request-id"]

        async def get(path: str) -> Any:
            response = await stack.http.get(stack.url + path)
            assert response.status == 200, path
            return await response.json()

        assert (await get("/health")) == {"status": "ok"}
        assert (await get("/ready"))["synced"] == 2
        assert [model["id"] for model in (await get("/v1/models"))["data"]] == ["tiny"]
        assert (await get("/v1/models/tiny"))["object"] == "model"
        rows = await get("/replicas")
        assert [(row["id"], row["state"], row["synced"]) for row in rows] == [
            ("r1", "ready", True),
            ("r2", "ready", True),
        ]
        explained = await get(f"/route/explain/{request_id}")
        assert {row["replica"] for row in explained["candidates"]} == {"r1", "r2"}
        timeline = await get(f"/trace/{request_id}")
        names = [item["event"] for item in timeline["events"]]
        assert names[:4] == ["received", "tokenised", "routed", "dispatched"] or "queued" in names[:5]
        assert set(names) == {"received", "tokenised", "routed", "dispatched", "first_byte", "done", "queued"}
        times = [item["at_s"] for item in timeline["events"]]
        assert times == sorted(times)
        assert [entries for _, entries in timeline["kv"]] == [7]
        exposition = await (await stack.http.get(f"{stack.url}/metrics")).text()
        assert 'ryokan_gateway_replicas{state="ready"} 2.0' in exposition
        assert "ryokan_gateway_time_to_first_token_seconds_bucket" in exposition
        head = await stack.http.head(f"{stack.url}/v1/models")
        assert head.status == 200


async def test_a_replica_that_differs_answers_without_credit_and_is_shown(config: GatewayConfig) -> None:
    """As while one of a fleet is being upgraded: the rest goes on as it was."""
    async with fleet(config, answers) as stack, FakeReplica("other", answers).serving() as replica:
        publisher = publisher_for(stack.redis, replica, config.model, block_size=32)
        async with publisher.serving():
            await eventually(lambda: "other" in stack.app[POOLS].first.fleet.present())
            await publisher.change(blocks(1, 5))
            for _ in range(2):
                assert (await stack.chat()).status == 200
            rows = {row["id"]: row for row in await (await stack.http.get(f"{stack.url}/replicas")).json()}
            exposition = await (await stack.http.get(f"{stack.url}/metrics")).text()
        assert (rows["r1"]["compatible"], rows["r1"]["differences"], rows["r1"]["synced"]) == (True, [], True)
        other = rows["other"]
        assert (other["compatible"], other["synced"], other["indexed_blocks"]) == (False, False, 0)
        assert other["differences"] == ["block size 32, here 16"]
        assert 'ryokan_gateway_incompatible_replicas{difference="block_size"} 1.0' in exposition
        assert 'ryokan_gateway_incompatible_replicas{difference="canary"} 0.0' in exposition
        assert replica.requests


async def test_a_session_stays_on_its_replica(config: GatewayConfig) -> None:
    async with fleet(replace(config, policy="session"), answers, answers, answers) as stack:
        for name in ("x-session-id", "user"):
            places = dict[str, set[str]]()
            for number in range(12):
                session = f"s{number % 4}"
                body = chat_body(f"{number} " * 50) | ({"user": session} if name == "user" else {})
                headers = {name: session} if name != "user" else {}
                response = await stack.http.post(f"{stack.url}/v1/chat/completions", json=body, headers=headers)
                places.setdefault(session, set()).add(response.headers["x-ryokan-replica"])
            assert [len(replicas) for replicas in places.values()] == [1] * 4
            assert len(set.union(*places.values())) > 1


async def test_the_policy_can_be_switched_from_this_machine(config: GatewayConfig) -> None:
    async with fleet(config, answers) as stack:
        response = await stack.http.post(f"{stack.url}/admin/policy", json={"policy": "ttft"})
        assert await response.json() == {"policy": "ttft", "previous": "round_robin", "shadow": None}
        assert (await stack.chat()).headers["x-ryokan-policy"] == "ttft"


async def test_a_follow_up_goes_where_its_prefix_is(config: GatewayConfig) -> None:
    async with fleet(replace(config, policy="ttft"), answers, answers, answers) as stack:
        first = await stack.chat("context " * 40)
        owner = first.headers["x-ryokan-replica"]
        for _ in range(5):
            later = await stack.chat("context " * 40 + "and a question")
            assert later.headers["x-ryokan-replica"] == owner
            assert int(later.headers["x-ryokan-cached-tokens"]) >= 160


async def test_a_decision_its_outcome_and_its_losses_are_explained(config: GatewayConfig) -> None:
    """The replica that has the prompt drains; the other one then has it too, but gives less than was expected."""
    async with fleet(replace(config, policy="ttft"), answers, answers) as stack:
        text = "context " * 40
        first = await stack.chat(text)
        owner = first.headers["x-ryokan-replica"]
        publisher = next(publisher for publisher in stack.publishers if publisher.name == owner)
        trace = stack.app[TRACES].get(first.headers["x-request-id"])
        assert trace is not None and trace.considered is not None
        await publisher.change(trace.considered.request.hashes)
        await eventually(lambda: stack.app[POOLS].first.index.blocks(owner) > 0)
        hit = await explain(stack, await stack.chat(text, stream=True))
        assert (hit["replica"], hit["reason"]) == (owner, "hit")
        await publisher.beat(state="draining")
        await publisher.announce()
        await eventually(lambda: owner not in stack.app[POOLS].first.fleet.routable(asyncio.get_running_loop().time()))
        moved = await explain(stack, await stack.chat(text))
        metrics = await (await stack.http.get(f"{stack.url}/metrics")).text()
    assert hit["outcome"]["ladder"]["chosen"] == hit["predicted_held_tokens"] > 16
    assert hit["outcome"]["lost_tokens"] == {"stale": hit["predicted_held_tokens"] - 16}
    assert moved["replica"] != owner
    assert moved["barred"][0]["replica"] == owner and "draining" in moved["barred"][0]["why"]
    assert moved["outcome"]["lost_tokens"].keys() == {"draining"}
    assert moved["outcome"]["ttft_s"] >= moved["outcome"]["replica_ttft_s"] > 0
    assert 'ryokan_gateway_decisions_total{policy="ttft",reason="hit"} 1.0' in metrics
    lost = {
        cause: float(tokens) for cause, tokens in re.findall(r'prefix_lost_\w+_total{cause="(\w+)".*} (.*)', metrics)
    }
    steps = {step: float(tokens) for step, tokens in re.findall(r'prefix_tokens_total{.*step="(\w+)"} (.*)', metrics)}
    assert lost["stale"] > 0 and lost["draining"] > 0 and sum(lost.values()) == steps["computed"] - steps["delivered"]


async def test_many_streams_at_once_all_come_through(config: GatewayConfig) -> None:
    async with fleet(replace(config, policy="ttft"), answers, answers) as stack:
        responses = await asyncio.gather(*(stack.chat(f"question {i}", stream=True) for i in range(100)))
        bodies = await asyncio.gather(*(response.read() for response in responses))
        assert all(body.endswith(b"data: [DONE]\n\n") for body in bodies)
        assert sum(status.leases for status in stack.app[POOLS].first.fleet.statuses(0).values()) == 0
