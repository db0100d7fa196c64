"""A gateway with keys: who gets in, what holds for whom, and what an operator alone may see."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.config import GatewayConfig
from gateway.keys import GATE, POOLS
from gateway.tenants.key_file import digest_of, tenant_salt
from replica.protocol.hashing import BLOCK_SIZE
from tests.gateway.fakes import Behaviour, FakeReplica, answers, answers_status, chat_body, eventually, stalls_in_stream
from tests.gateway.stack import Fleet, error_of, fleet
from tests.processes import Process

ALICE, BOB, ADMIN = "sk-alice-0123456789", "sk-bob-0123456789", "admin-0123456789abcdef"
SECRET = "salt-secret-0123456789"
SYSTEM = "You know accessible hotels, their lifts and their ramps. " * 3


def write_keys(path: Path, tenants: str = "", **more: str) -> Path:
    """Alice and Bob; `more` is what the file says of either's key."""
    rows = [
        f'[[keys]]\nname = "{tenant}-key"\ntenant = "{tenant}"\nsha256 = "{digest_of(key).hex()}"\n'
        + more.get(tenant, "")
        for tenant, key in (("alice", ALICE), ("bob", BOB))
    ]
    path.write_text(f'salt_secret = "{SECRET}"\n' + "\n".join(rows) + f"\n{tenants}\n")
    return path


@pytest.fixture
def config(model_folder: Path, redis_url: str, tmp_path: Path) -> GatewayConfig:
    keys = write_keys(tmp_path / "keys.toml")
    return GatewayConfig(model=model_folder, redis_url=redis_url, policy="round_robin", keys_file=keys, admin_key=ADMIN)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def ask(stack: Fleet, key: str = ALICE, **fields: Any) -> Any:
    return await stack.http.post(f"{stack.url}/v1/chat/completions", json=chat_body(**fields), headers=bearer(key))


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer sk-wrong", f"Basic {ALICE}", ALICE, f"Bearer {ALICE}x", "Bearer \xff"],
)
async def test_without_a_known_key_all_that_clients_ask_is_refused(
    config: GatewayConfig, authorization: str | None
) -> None:
    given = {} if authorization is None else {"Authorization": authorization}
    async with fleet(config, answers) as stack:
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("POST", "/v1/completions"),
            ("POST", "/tokenize"),
            ("POST", "/detokenize"),
            ("GET", "/v1/models"),
            ("GET", "/v1/models/tiny"),
        ):
            response = await stack.http.request(method, stack.url + path, headers=given)
            error = await error_of(response)
            assert (response.status, error["code"], error["type"]) == (401, "invalid_api_key", "invalid_request_error")
            assert response.headers["WWW-Authenticate"] == "Bearer"
        assert stack.replicas[0].requests == []
        assert (await stack.http.get(f"{stack.url}/health")).status == 200


async def test_a_known_key_is_let_in_and_goes_no_further(config: GatewayConfig) -> None:
    async with fleet(config, answers) as stack:
        for key in (ALICE, BOB):
            assert (await ask(stack, key)).status == 200
        assert "authorization" not in {name for seen in stack.replicas[0].seen_headers for name in seen}
        lower = await stack.http.post(
            f"{stack.url}/v1/chat/completions", json=chat_body(), headers={"authorization": f"bearer  {ALICE}"}
        )
        assert lower.status == 200


async def test_d09_the_salt_is_the_tenant_s_whatever_the_client_sends(config: GatewayConfig) -> None:
    salts = {tenant: tenant_salt(SECRET.encode(), tenant) for tenant in ("alice", "bob")}
    async with fleet(config, answers) as stack:
        for key in (ALICE, BOB):
            assert (await ask(stack, key, cache_salt=salts["alice"])).status == 200
            assert (await ask(stack, key)).status == 200
        sent = [request["cache_salt"] for request in stack.replicas[0].requests]
        assert sent == [salts["alice"]] * 2 + [salts["bob"]] * 2


async def test_d09_the_index_matches_no_other_tenant_s_blocks_but_the_public_ones(
    config: GatewayConfig, tmp_path: Path
) -> None:
    """What Alice's request left in the replica, as a digest tells it, is hers, but for the listed system prompt."""
    config = replace(config, public_prompts={"travel": SYSTEM}, policy="ttft")
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "My name is Ada. " * 9}]
    async with fleet(config, answers) as stack:
        assert (await ask(stack, ALICE, messages=messages)).status == 200
        [sent] = stack.replicas[0].requests
        public = sent["public_prefix_tokens"]
        assert public % BLOCK_SIZE == 0 and public > 5 * BLOCK_SIZE
        prompt = await stack.app[POOLS].first.tokenizer.chat(messages, salt=sent["cache_salt"])
        assert prompt.public_tokens == public
        await stack.publishers[0].change(added=prompt.hashes)
        await eventually(lambda: stack.app[POOLS].first.index.blocks("r1") == len(prompt.hashes))
        await asyncio.sleep(0.1)
        whole = len(prompt.hashes) * BLOCK_SIZE
        for key, salt, expected in (
            (ALICE, None, whole),
            (BOB, sent["cache_salt"], public),
            (ALICE, "x", whole),
            # His own by now, as the gateway expects.
            (BOB, None, whole),
        ):
            fields = {"cache_salt": salt} if salt else {}
            response = await ask(stack, key, messages=messages, **fields)
            assert int(response.headers["x-ryokan-cached-tokens"]) == expected, key


async def test_a_client_can_t_say_what_is_public(config: GatewayConfig) -> None:
    for with_keys in (config, replace(config, keys_file=None)):
        async with fleet(with_keys, answers) as stack:
            response = await ask(stack, public_prefix_tokens=16)
            assert (response.status, (await error_of(response))["param"]) == (400, "public_prefix_tokens")


async def test_without_isolation_nobody_has_a_salt(config: GatewayConfig) -> None:
    async with fleet(replace(config, isolate_tenants=False), answers) as stack:
        assert (await ask(stack, cache_salt="mine")).status == 200
        assert stack.replicas[0].requests[0].get("cache_salt") is None


async def test_without_keys_a_client_s_salt_passes(config: GatewayConfig) -> None:
    async with fleet(replace(config, keys_file=None), answers) as stack:
        assert (await ask(stack, cache_salt="mine", priority=-9)).status == 200
        assert stack.replicas[0].requests[0]["cache_salt"] == "mine"
        assert stack.replicas[0].requests[0]["priority"] == -9


async def test_a_priority_is_cut_at_the_ceiling(config: GatewayConfig, tmp_path: Path) -> None:
    write_keys(tmp_path / "keys.toml", alice="priority_ceiling = 0\n")
    async with fleet(config, answers) as stack:
        for priority in (-7, 0, 7):
            await ask(stack, priority=priority)
        assert [request["priority"] for request in stack.replicas[0].requests] == [0, 0, 7]


async def test_a_model_that_a_key_may_not_use_isn_t_there(config: GatewayConfig, tmp_path: Path) -> None:
    write_keys(tmp_path / "keys.toml", alice='models = ["another"]\n', bob='models = ["tiny"]\n')
    async with fleet(config, answers) as stack:
        assert (await ask(stack, BOB)).status == 200
        messages = set()
        for model in ("tiny", "none"):
            response = await ask(stack, model=model)
            error = await error_of(response)
            assert (response.status, error["code"]) == (404, "model_not_found")
            messages.add(error["message"].replace(model, "MODEL"))
        assert len(messages) == 1
        for key, listed in ((ALICE, []), (BOB, ["tiny"])):
            models = await (await stack.http.get(f"{stack.url}/v1/models", headers=bearer(key))).json()
            assert [model["id"] for model in models["data"]] == listed
            one = await stack.http.get(f"{stack.url}/v1/models/tiny", headers=bearer(key))
            tokens = await stack.http.post(f"{stack.url}/tokenize", json={"prompt": "a"}, headers=bearer(key))
            assert [one.status, tokens.status] == ([200, 200] if listed else [404, 404])


async def refused(stack: Fleet, code: str, **fields: Any) -> int:
    response = await ask(stack, **fields)
    error = await error_of(response)
    assert (response.status, error["code"], error["type"]) == (429, code, "rate_limit_error")
    assert "alice" in error["message"]
    return int(response.headers["Retry-After"])


async def test_requests_a_minute(config: GatewayConfig, tmp_path: Path) -> None:
    write_keys(tmp_path / "keys.toml", "[tenants.alice]\nrequests_per_minute = 2\n")
    async with fleet(config, answers) as stack:
        assert [(await ask(stack)).status for _ in range(2)] == [200, 200]
        assert 25 <= await refused(stack, "request_rate_exceeded") <= 30
        assert (await ask(stack, BOB)).status == 200


def answers_with_usage(tokens: int) -> Behaviour:
    async def behave(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
        return web.json_response({"object": "chat.completion", "choices": [], "usage": usage})

    return behave


async def test_tokens_a_minute_count_prompt_and_answer(config: GatewayConfig, tmp_path: Path) -> None:
    write_keys(tmp_path / "keys.toml", "[tenants.alice]\ntokens_per_minute = 1000\n")
    async with fleet(config, answers_with_usage(900)) as stack:
        assert (await ask(stack)).status == 200
        assert await refused(stack, "token_rate_exceeded", text="hotel " * 50) <= 60
        assert (await ask(stack, BOB, text="hotel " * 50)).status == 200


async def test_what_came_to_nothing_costs_no_tokens(config: GatewayConfig, tmp_path: Path) -> None:
    write_keys(tmp_path / "keys.toml", "[tenants.alice]\ntokens_per_minute = 400\n")
    async with fleet(config, answers_status(500)) as stack:
        for _ in range(5):
            assert (await ask(stack, text="hotel " * 50)).status == 502


async def test_tokens_of_a_stream_are_paid_as_they_go_out(config: GatewayConfig, tmp_path: Path) -> None:
    async def streams(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        chunk = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
        for _ in range(900):
            await response.write(chunk)
        await replica.gate.wait()
        await response.write(b"data: [DONE]\n\n")
        return response

    write_keys(tmp_path / "keys.toml", "[tenants.alice]\ntokens_per_minute = 1000\n")
    async with fleet(config, streams) as stack:
        response = await ask(stack, stream=True)
        [account] = stack.app[GATE].meter._accounts.values()
        await eventually(lambda: account.tokens is not None and account.tokens.level(0) < 100)
        await refused(stack, "token_rate_exceeded", text="hotel " * 50)
        stack.replicas[0].gate.set()
        await response.read()


async def test_requests_at_a_time_and_a_client_who_leaves_gives_the_place_back(
    config: GatewayConfig, tmp_path: Path
) -> None:
    write_keys(tmp_path / "keys.toml", "[tenants.alice]\nconcurrent_requests = 2\n")
    async with fleet(config, stalls_in_stream) as stack:
        streams = [await ask(stack, stream=True) for _ in range(2)]
        assert await refused(stack, "concurrency_exceeded") == 1
        streams[0].close()
        await eventually(lambda: stack.app[GATE].meter.running == 1)
        streams.append(await ask(stack, stream=True))
        assert streams[-1].status == 200
        stack.replicas[0].gate.set()
        for stream in streams[1:]:
            await stream.read()
        await eventually(lambda: stack.app[GATE].meter.running == 0)


OPERATORS = [
    ("GET", "/metrics"),
    ("GET", "/replicas"),
    ("GET", "/route/explain/x"),
    ("POST", "/route/dry-run"),
    ("GET", "/route/shadow"),
    ("GET", "/trace/x"),
    ("POST", "/admin/policy"),
]


async def test_f10_with_keys_operators_show_the_admin_key(config: GatewayConfig) -> None:
    async with fleet(config, answers) as stack:
        for method, path in OPERATORS:
            for given in ({}, bearer("wrong"), bearer(ALICE)):
                response = await stack.http.request(method, stack.url + path, headers=given)
                assert (response.status, (await error_of(response))["code"]) == (401, "invalid_api_key")
            assert (await stack.http.request(method, stack.url + path, headers=bearer(ADMIN))).status != 401
        assert (await ask(stack, ADMIN)).status == 401


@pytest.mark.parametrize("with_keys", [True, False])
async def test_f10_operators_have_a_port_of_their_own(config: GatewayConfig, tmp_path: Path, with_keys: bool) -> None:
    (tmp_path / "admin").write_text(ADMIN)
    settings = tmp_path / "gateway.toml"
    settings.write_text(
        f'model = "{config.model}"\nredis_url = "{config.redis_url}"\nport = 0\nadmin_port = 0\n'
        f'admin_key_file = "{tmp_path / "admin"}"\n' + (f'keys_file = "{config.keys_file}"\n' if with_keys else "")
    )
    process = Process(["gateway", "--config", str(settings)], tmp_path / "log")
    try:
        public = process.wait_for(r"gateway ready on (http\S+)")
        admin = process.wait_for(r"gateway for operators on (http\S+)")
        async with aiohttp.ClientSession() as http:
            for method, path in OPERATORS:
                assert (await http.request(method, public + path, headers=bearer(ADMIN))).status == 404
                assert (await http.request(method, admin + path)).status == 401
            assert (await http.get(f"{admin}/replicas", headers=bearer(ADMIN))).status == 200
            assert (await http.get(f"{admin}/health")).status == 200
            for path in ("/v1/chat/completions", "/tokenize", "/v1/models"):
                method = "GET" if path.endswith("models") else "POST"
                assert (await http.request(method, admin + path, headers=bearer(ALICE))).status == 404
            assert (await http.get(f"{public}/v1/models", headers=bearer(ALICE))).status == 200
    finally:
        assert process.stop() == 0
