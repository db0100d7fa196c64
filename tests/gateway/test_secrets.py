"""F11: keys and prompts go where they must, and are found nowhere else."""

import asyncio
import contextlib
import gzip
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from gateway.tenants.key_file import digest_of
from tests.gateway.fakes import (
    Behaviour,
    FakeReplica,
    answers,
    answers_status,
    chat_body,
    dies_in_body,
    publisher_for,
    redis_client,
    resets,
    stalls_in_stream,
)
from tests.gateway.test_keys import ADMIN, ALICE, BOB, SECRET, bearer, write_keys
from tests.processes import Process

PROMPT = "MARKER-PROMPT-4711"
WRONG = "sk-MARKER-WRONG-KEY"
ELSEWHERE = {"x-api-key": f"{WRONG}-0", "Cookie": f"key={WRONG}-1"}
"""Where clients put keys that other servers take."""
MARKS = (PROMPT, ALICE, BOB, WRONG, ADMIN, SECRET, digest_of(ALICE).hex())


class Leaks:
    """What was seen that isn't the answer to a request that succeeded."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}

    def add(self, what: str, text: str | bytes) -> None:
        self.seen[f"{len(self.seen)} {what}"] = text if isinstance(text, str) else text.decode(errors="replace")

    def found(self) -> list[tuple[str, str]]:
        return [(what, mark) for what, text in self.seen.items() for mark in MARKS if mark in text]


async def send(http: aiohttp.ClientSession, leaks: Leaks, url: str, raw: bytes, **headers: str) -> int:
    given = (
        ELSEWHERE
        | bearer(ALICE)
        | {"Content-Type": "application/json"}
        | {k.replace("_", "-"): v for k, v in headers.items()}
    )
    try:
        async with http.post(url, data=raw, headers=given) as response:
            leaks.add(f"answer {response.status} of {url}", await response.read())
            leaks.add("headers", str(response.headers))
            return response.status
    except aiohttp.ClientError as error:
        leaks.add("error", str(error))
        return 0


def prompt(**fields: Any) -> bytes:
    return orjson.dumps(chat_body(PROMPT, **({"user": PROMPT} | fields)))


async def bad_requests(http: aiohttp.ClientSession, leaks: Leaks, url: str) -> set[int]:
    chat = f"{url}/v1/chat/completions"
    raws = [
        prompt(model="none"),
        prompt(temperature="hot"),
        prompt(max_tokens=10**9),
        prompt(tools=[]) + b"x",
        prompt()[:-3],
        orjson.dumps({"model": "tiny", "messages": [{"role": "user", "content": [{"type": PROMPT[:0] or "image"}]}]}),
        orjson.dumps({"model": "tiny", "messages": PROMPT[:0]}),
        orjson.dumps(chat_body(PROMPT * 4000)),
        b"\xff" + prompt(),
    ]
    statuses = {await send(http, leaks, chat, raw) for raw in raws}
    statuses.add(await send(http, leaks, chat, prompt(), Authorization=f"Bearer {WRONG}"))
    statuses.add(await send(http, leaks, chat, prompt(), Authorization=WRONG))
    statuses.add(await send(http, leaks, chat, gzip.compress(prompt())[:-9], Content_Encoding="gzip"))
    statuses.add(await send(http, leaks, f"{chat}?key={WRONG}", prompt(temperature=9)))
    statuses.add(await send(http, leaks, f"{url}/nowhere?key={WRONG}", prompt()))
    statuses.add(await send(http, leaks, f"{url}/v1/completions", prompt()))
    statuses.add(await send(http, leaks, f"{url}/admin/policy", prompt()))
    statuses.add(await send(http, leaks, f"{url}/admin/policy", b"{}", Authorization=f"Bearer {ADMIN}"))
    return statuses


async def leave(http: aiohttp.ClientSession, url: str) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.3):
            chat = f"{url}/v1/chat/completions"
            async with http.post(chat, json=chat_body(PROMPT, stream=True), headers=bearer(ALICE)) as response:
                await response.read()


def logged(folder: Path) -> list[bytes]:
    return (folder / "access.log").read_bytes().splitlines()


def process_files(leaks: Leaks, pid: int) -> None:
    for name in ("cmdline", "environ"):
        leaks.add(name, Path(f"/proc/{pid}/{name}").read_bytes())


@pytest.mark.parametrize("behaviour", [answers, answers_status(500), answers_status(400), resets, dies_in_body])
async def test_f11_secrets_are_in_no_log_error_metric_command_line_nor_redis(
    model_folder: Path, redis_url: str, tmp_path: Path, behaviour: Behaviour
) -> None:
    write_keys(tmp_path / "keys.toml", "[tenants.bob]\nrequests_per_minute = 1\n")
    (tmp_path / "admin").write_text(ADMIN)
    (tmp_path / "gateway.toml").write_text(
        f'model = "{model_folder}"\nserved_model_name = "tiny"\nredis_url = "{redis_url}"\nport = 0\n'
        'keys_file = "keys.toml"\nadmin_key_file = "admin"\nlog_level = "debug"\npolicy = "round_robin"\n'
        f'record = "trace.jsonl"\naccess_log = "access.log"\n'
        f'queue_timeout = 0.3\nfirst_byte_timeout = 2\n[public_prompts]\np = "{PROMPT}"\n'
    )
    leaks = Leaks()
    process = Process(["gateway", "--config", str(tmp_path / "gateway.toml")], tmp_path / "log")
    try:
        url = process.wait_for(r"gateway ready on (http\S+)")
        async with (
            redis_client(redis_url) as redis,
            FakeReplica("r1", behaviour).serving() as replica,
            FakeReplica("r2", stalls_in_stream).serving() as staller,
            publisher_for(redis, replica, model_folder).serving(),
            aiohttp.ClientSession() as http,
        ):
            await asyncio.sleep(1)
            for fields in ({}, {"stream": True}, {"n": 2}):
                await send(http, leaks, f"{url}/v1/chat/completions", prompt(**fields), x_request_id="named")
            assert {400, 401, 404, 413} & await bad_requests(http, leaks, url) >= {400, 401, 404}
            async with publisher_for(redis, staller, model_folder).serving():
                await asyncio.sleep(1)
                for _ in range(4):
                    await leave(http, url)
                assert staller.aborted > 0
                staller.gate.set()
            limited = [await send(http, leaks, f"{url}/v1/chat/completions", prompt(), **bearer(BOB)) for _ in range(2)]
            assert limited[1] == 429
            for path in ("/metrics", "/replicas", "/route/explain/named", "/trace/named", "/route/shadow"):
                async with http.get(url + path, headers=bearer(ADMIN)) as response:
                    leaks.add(path, await response.read())
            named = {orjson.loads(line)["request_id"] for line in logged(tmp_path)} - {None}
            assert len(named) > 10
            for name in named:
                for path in (f"/route/explain/{name}", f"/trace/{name}"):
                    async with http.get(url + path, headers=bearer(ADMIN)) as response:
                        leaks.add(path, await response.read())
            (tmp_path / "keys.toml").write_text(f'salt_secret = "{SECRET}"\n[[keys]]\nname = "{ALICE}"\n')
            process.wait_for("(nothing is changed: key file)")
            for key in await redis.keys("*"):
                leaks.add(f"Redis {key}", key + await redis.dump(key))
            for seen in (*replica.seen_headers, *staller.seen_headers):
                leaks.add("headers to a replica", str(seen))
        process_files(leaks, process.pid)
    finally:
        assert process.stop() == 0
    leaks.add("log", process.said)
    leaks.add("access log", b"".join(logged(tmp_path)))
    leaks.add("trace", (tmp_path / "trace.jsonl").read_bytes())
    assert len(leaks.seen) > 40
    assert leaks.found() == []
