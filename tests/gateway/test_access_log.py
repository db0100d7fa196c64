"""Lines of the access log, the thread that writes them, and what a real gateway says in them."""

import asyncio
import json
import os
import stat
import threading
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.access_log import AccessLog, Answered, Course, course, line
from gateway.config import GatewayConfig, Timeouts
from gateway.keys import OBSERVER
from gateway.traces import Attempt, Trace
from replica.protocol import headers
from tests.gateway.fakes import (
    FakeReplica,
    answers_status,
    chat_body,
    dies_in_body,
    eventually,
    open_stream,
    resets,
    stalls,
)
from tests.gateway.raw_http import Connection
from tests.gateway.stack import fleet
from tests.gateway.test_keys import ALICE, bearer, write_keys
from tests.gateway.test_traces import decision

AT = datetime(2026, 11, 30, 12, 0, 0, 5000, UTC)
SECRET = "Marker4711"


@pytest.fixture
def config(model_folder: Path, redis_url: str, tmp_path: Path) -> GatewayConfig:
    timeouts = Timeouts(connect_s=5, first_byte_s=5, idle_s=5, queue_s=5, grace_s=2)
    log = str(tmp_path / "access.log")
    return GatewayConfig(
        model=model_folder, redis_url=redis_url, timeouts=timeouts, policy="round_robin", access_log=log
    )


def answered(**fields: Any) -> Answered:
    known: dict[str, Any] = {"method": "POST", "path": "/v1/x", "endpoint": "/v1/x", "status": 200, "took_s": 1.5}
    return Answered(**(known | fields))


def routed() -> Trace:
    trace = Trace("id1", 0.0)
    trace.model, trace.tenant, trace.delivered_tokens = "tiny", "acme", 16
    trace.considered = decision(3)
    trace.attempts += [Attempt("r0", "closed"), Attempt("r1")]
    trace.mark("received", 0.0)
    trace.tokenised(0.1, tokens=17)
    trace.dispatched(0.3, "r0")
    trace.dispatched(0.4, "r1")
    trace.first_byte(0.5)
    for _ in range(11):
        trace.answer.feed(b'data: {"choices":[{"delta":{},"finish_reason":null}]}\n\n')
    return trace


def test_a_line_tells_the_request_s_course() -> None:
    trace = routed()
    value = json.loads(line(answered(request_id="id1"), trace, course(trace, 1.5), AT))
    considered = trace.considered
    assert considered is not None
    assert value == {
        "time": "2026-11-30T12:00:00.005000Z",
        "request_id": "id1",
        "method": "POST",
        "path": "/v1/x",
        "status": 200,
        "total_s": 1.5,
        "model": "tiny",
        "tenant": "acme",
        "prompt_tokens": 17,
        "replica": considered.decision.choice,
        "policy": "ttft",
        "reason": considered.reason.value,
        "cached_predicted": considered.decision.cached_tokens,
        "cached_delivered": 16,
        "output_tokens": 11,
        "ttft_s": 0.5,
        "itl_s": 0.1,
        "retries": 1,
        "held_s": 0.2,
    }


@pytest.mark.parametrize("path", ["/" + "x" * 10_000, "/\udcff\udcfe", '/"\n\x00'])
def test_whatever_the_path_a_line_is_one_line_of_json(path: str) -> None:
    data = line(answered(path=path, method="M" * 100), None, Course(), AT)
    assert data.count(b"\n") == 1 and len(data) < 1200
    assert json.loads(data)["path"].startswith("/")


def test_a_request_without_first_byte_has_no_times_of_one() -> None:
    trace = Trace("id1", 0.0)
    value = json.loads(line(answered(status=499, code="x"), trace, course(trace, 1.5), AT))
    assert not value.keys() & {"ttft_s", "itl_s", "replica", "retries"}
    assert (value["error"], value["held_s"]) == ("x", None)


def test_lines_are_written_in_order_and_go_on_in_a_new_file_after_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(str(path))
    log.start()
    log.put(b"one\n")
    wait_for(path, b"one\n")
    assert stat.S_IMODE(path.stat().st_mode) & 0o007 == 0
    path.rename(tmp_path / "old.log")
    log.put(b"two\n")
    wait_for(tmp_path / "old.log", b"one\ntwo\n")
    log.reopen()
    for number in range(1000):
        log.put(b"%d\n" % number)
    log.close()
    assert path.read_bytes() == b"".join(b"%d\n" % number for number in range(1000))


def test_a_pipe_that_nobody_reads_holds_nobody_up(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    dropped = Counter[str]()
    log = AccessLog(str(fifo), lambda lines: dropped.update(lines=lines))
    log.start()
    for _ in range(60_000):
        log.put(b"x" * 100 + b"\n")
    log.close()
    os.close(reader)
    assert dropped["lines"] >= 60_000 - 20_000 - 65_536 // 101 - 20_000


def test_a_disk_that_is_full_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    log = AccessLog("/dev/full")
    for _ in range(3):
        log.put(b"x\n")
        log._flush()
    # Not what another log's thread has to say.
    said = [record.message for record in caplog.records if record.thread == threading.get_ident()]
    assert said == ["the access log can't be written: No space left on device"]
    log.start()
    log.close()


def wait_for(path: Path, content: bytes) -> None:
    from tests.processes import eventually

    eventually(lambda: path.read_bytes() == content)


async def two_tokens(replica: FakeReplica, request: aiohttp.web.Request, body: dict[str, Any]) -> Any:
    response = await open_stream(request, delivered=16)
    for text in (SECRET, SECRET):
        event = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
        await response.write(b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")
        await asyncio.sleep(0.02)
    await response.write(b"data: [DONE]\n\n")
    return response


async def lines_of(stack: Any, count: int) -> list[dict[str, Any]]:
    path = Path(stack.app[OBSERVER].access_log._path)
    await eventually(lambda: path.read_bytes().count(b"\n") >= count)
    return [json.loads(text) for text in path.read_text().splitlines()]


async def test_every_request_has_one_line_whatever_came_of_it(config: GatewayConfig) -> None:
    async with fleet(config, resets, two_tokens) as stack:
        url = f"{stack.url}/v1/chat/completions"
        body = chat_body(SECRET, stream=True)
        given = {headers.REQUEST_ID: "mine-1", "Authorization": f"Bearer {SECRET}"}
        async with stack.http.post(url, json=body, headers=given) as response:
            await response.read()
        async with stack.http.post(f"{url}?key={SECRET}", json=body | {"model": SECRET}) as response:
            assert response.status == 404
        async with stack.http.get(
            f"{stack.url}/nowhere?q={SECRET}", headers={headers.REQUEST_ID: "mine-3"}
        ) as response:
            assert response.status == 404
        first, second, third = await lines_of(stack, 3)
        assert SECRET not in Path(config.access_log).read_text()
    assert (first["request_id"], first["replica"], first["retries"], first["status"]) == ("mine-1", "r2", 1, 200)
    assert (first["model"], first["output_tokens"], first["cached_delivered"]) == ("tiny", 2, 16)
    assert 0 < first["ttft_s"] < first["total_s"] and first["itl_s"] > 0.01 and first["held_s"] >= 0
    assert (second["status"], second["error"], second["model"]) == (404, "model_not_found", None)
    assert (third["path"], third["request_id"]) == ("/nowhere", "mine-3")


async def test_errors_and_clients_that_leave_are_told_by_name(config: GatewayConfig) -> None:
    for behaviour, stream, expected in (
        (answers_status(503), False, (503, "replicas_busy")),
        (dies_in_body, True, (200, "closed")),
    ):
        Path(config.access_log).unlink(missing_ok=True)
        async with fleet(config, behaviour) as stack:
            async with stack.http.post(f"{stack.url}/v1/chat/completions", json=chat_body(stream=stream)) as response:
                await response.read()
            [value] = await lines_of(stack, 1)
        assert (value["status"], value["error"]) == expected
    Path(config.access_log).unlink()
    async with fleet(replace(config), stalls) as stack:
        asking = asyncio.create_task(stack.chat())
        await eventually(lambda: stack.replicas[0].live == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        [value] = await lines_of(stack, 1)
    assert value["status"] == 499 and value["replica"] == "r1"


async def test_the_tenant_is_told_and_what_was_no_http_too(config: GatewayConfig, tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.toml")
    async with fleet(replace(config, keys_file=keys), two_tokens) as stack:
        url = f"{stack.url}/v1/chat/completions"
        for key in (ALICE, f"{ALICE}x"):
            async with stack.http.post(url, json=chat_body(), headers=bearer(key)) as response:
                await response.read()
        async with Connection(stack.url) as connection:
            assert (await connection.ask(b"nonsense\r\n\r\n")).status == 400
        known, unknown, unreadable = await lines_of(stack, 3)
    assert (known["tenant"], known["status"]) == ("alice", 200)
    assert (unknown["tenant"], unknown["status"], unknown["error"]) == (None, 401, "invalid_api_key")
    assert (unreadable["path"], unreadable["status"], unreadable["error"]) == ("", 400, "malformed_request")
