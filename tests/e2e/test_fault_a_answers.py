"""Faults of the client's protocol where the answer itself tells, by their id in the catalogue of faults: a gateway with
a replica of the tiny model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from replica.protocol.text import ModelText
from tests.processes import Process
from tests.tool_model import TIME

MESSAGES: Any = [{"role": "user", "content": "hello"}]
CHAT: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 12, "ignore_eos": True}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "hello", "temperature": 0, "max_tokens": 12, "ignore_eos": True}
PATHS = {"chat": "/v1/chat/completions", "text": "/v1/completions"}
BODIES = {"chat": CHAT, "text": TEXT}


@pytest.fixture(scope="module")
def url(tool_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    command = ["deploy.cli", "up", "--model", str(tool_folder), "--replicas", "1", "--port", "0"]
    process = Process([*command, "--kv-memory-gib", "0.05"], tmp_path_factory.mktemp("fleet") / "log")
    yield process.wait_for(r"gateway +(http\S+)")
    assert process.stop() == 0


async def post(http: aiohttp.ClientSession, kind: str, **fields: Any) -> tuple[int, Any]:
    body = {name: value for name, value in (BODIES[kind] | fields).items() if value is not ...}
    async with http.post(PATHS[kind], json=body) as response:
        return response.status, await response.json()


async def chunks(http: aiohttp.ClientSession, kind: str, **fields: Any) -> list[Any]:
    async with http.post(PATHS[kind], json=BODIES[kind] | {"stream": True} | fields) as response:
        assert response.status == 200, await response.text()
        events = (await response.read()).decode().strip().split("\n\n")
    assert events.pop() == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def text_of(kind: str, value: Any) -> str:
    [choice] = value["choices"]
    return str(choice["message"]["content"] if kind == "chat" else choice["text"])


def joined(kind: str, found: list[Any]) -> str:
    return "".join(
        (choice["delta"].get("content") or "") if kind == "chat" else choice["text"]
        for chunk in found
        for choice in chunk["choices"]
    )


async def prompt_ids(http: aiohttp.ClientSession, messages: Any, **fields: Any) -> list[int]:
    status, value = await post(http, "chat", messages=messages, return_token_ids=True, max_tokens=1, **fields)
    assert status == 200, value
    return list(value["prompt_token_ids"])


COMMON_OPTIONAL = ["stop", "logit_bias", "seed", "n", "response_format", "user", "stream_options", "stream", "top_p"]
COMMON_OPTIONAL += ["presence_penalty", "frequency_penalty", "logprobs", "metadata", "store", "cache_salt", "priority"]
CHAT_OPTIONAL = ["tools", "tool_choice", "max_completion_tokens", "top_logprobs", "parallel_tool_calls"]


@pytest.mark.parametrize("kind", ["chat", "text"])
async def test_a01_an_explicit_null_is_as_if_absent(http: aiohttp.ClientSession, kind: str) -> None:
    names = [*COMMON_OPTIONAL, *(CHAT_OPTIONAL if kind == "chat" else ["best_of", "echo"])]
    status, plain = await post(http, kind)
    assert status == 200
    for fields in [*({name: None} for name in names), dict.fromkeys(names)]:
        status, value = await post(http, kind, **fields)
        assert status == 200 and value["choices"] == plain["choices"], fields
        if "stream" not in fields:
            assert joined(kind, await chunks(http, kind, **fields)) == text_of(kind, plain), fields
    for name in ("temperature", "max_tokens"):
        assert (await post(http, kind, **{name: None}, seed=1))[0] == 200


@pytest.mark.parametrize("kind", ["chat", "text"])
async def test_a02_stop_in_all_its_forms(http: aiohttp.ClientSession, kind: str) -> None:
    whole = text_of(kind, (await post(http, kind))[1])
    cut = whole[4:6]
    expected = whole[: whole.index(cut)]
    for stop in (cut, [cut], ["never\n", cut], [cut, ""]):
        status, value = await post(http, kind, stop=stop)
        assert (status, text_of(kind, value), value["choices"][0]["finish_reason"]) == (200, expected, "stop")
        assert joined(kind, await chunks(http, kind, stop=stop)) == expected
    for none in ("", [], [""]):
        _, value = await post(http, kind, stop=none)
        assert (text_of(kind, value), value["choices"][0]["finish_reason"]) == (whole, "length")
    wrongs: list[Any] = [[1], 1, {}, ["a"] * 5, [None], True, [["a"]]]
    for wrong in wrongs:
        for stream in (True, False):
            status, value = await post(http, kind, stop=wrong, stream=stream)
            assert (status, value["error"]["param"]) == (400, "stop"), wrong


async def test_a03_either_name_caps_the_answer(http: aiohttp.ClientSession) -> None:
    for fields in (
        {"max_tokens": 5},
        {"max_tokens": ..., "max_completion_tokens": 5},
        {"max_tokens": 9, "max_completion_tokens": 5},
        {"max_tokens": 3, "max_completion_tokens": 5},
    ):
        status, value = await post(http, "chat", **fields)
        assert status == 200
        assert value["usage"]["completion_tokens"] == (5 if "max_completion_tokens" in fields else fields["max_tokens"])
        assert value["choices"][0]["finish_reason"] == "length"
    for name in ("max_tokens", "max_completion_tokens"):
        for wrong in (0, -1, 1.5, "5", True):
            status, value = await post(http, "chat", **{name: wrong})
            assert (status, value["error"]["param"]) == (400, name)


async def test_a04_text_parts_are_kept_in_order(http: aiohttp.ClientSession) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    for role, more in (
        ("system", {}),
        ("developer", {}),
        ("user", {}),
        ("assistant", {}),
        ("tool", {"tool_call_id": "c"}),
    ):
        turn = {"role": role, **more}
        ids = [await prompt_ids(http, [*MESSAGES, turn | {"content": content}]) for content in (parts, "one\ntwo")]
        assert ids[0] == ids[1], role
    for part in (
        {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "input_audio"},
        {"type": "text"},
        {"type": "text", "text": 1},
        "text",
        None,
    ):
        status, value = await post(http, "chat", messages=[{"role": "user", "content": [*parts, part]}])
        assert status == 400 and value["error"]["param"].startswith("messages.0.content"), part
        if isinstance(part, dict) and part["type"] != "text":
            assert part["type"] in value["error"]["message"]


async def test_a06_replayed_calls_stay_and_nothing_becomes_the_text_none(
    http: aiohttp.ClientSession, tool_text: ModelText
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "time", "arguments": "{}"}}
    answer = {"role": "tool", "tool_call_id": "c1", "content": "noon"}
    seen = set()
    for turn in (
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ):
        for tools in ([TIME], ...):
            ids = await prompt_ids(http, [*MESSAGES, turn, answer], tools=tools)
            text = tool_text.decode(ids, skip_special_tokens=False)
            assert "None" not in text and "null" not in text
            assert '<tool_call>{"name": "time", "arguments": {}}</tool_call>' in text and "noon" in text
            seen.add((tools is ..., tuple(ids)))
    assert len(seen) == 2
    plain = [*MESSAGES, {"role": "assistant", "content": "x", "tool_calls": None}, *MESSAGES]
    assert "None" not in tool_text.decode(await prompt_ids(http, plain))
    for orphan in ({"role": "tool", "content": "x"}, {"role": "assistant"}, {"role": "assistant", "content": None}):
        status, value = await post(http, "chat", messages=[*MESSAGES, orphan])
        assert status == 400 and value["error"]["param"].startswith("messages.1")


async def test_a07_roles_and_empty_texts(http: aiohttp.ClientSession) -> None:
    ids = [
        await prompt_ids(http, [{"role": role, "content": "Be kind."}, *MESSAGES]) for role in ("system", "developer")
    ]
    assert ids[0] == ids[1]
    assert await prompt_ids(http, [{"role": "user", "content": ""}])
    for messages, param in (
        ([], "messages"),
        ([{"role": "robot", "content": "x"}], "messages.0.role"),
        ([{"role": "User", "content": "x"}], "messages.0.role"),
        ([{"role": None, "content": "x"}], "messages.0.role"),
        ([{"content": "x"}], "messages.0.role"),
        ([{"role": "user"}], "messages.0.content"),
        (["hello"], "messages.0"),
        ("hello", "messages"),
        ({"role": "user", "content": "x"}, "messages"),
    ):
        status, value = await post(http, "chat", messages=messages)
        assert (status, value["error"]["param"]) == (400, param), messages


@pytest.mark.parametrize("kind", ["chat", "text"])
async def test_a08_usage_comes_once_and_only_when_asked_for(http: aiohttp.ClientSession, kind: str) -> None:
    unasked: list[dict[str, Any]] = [{}, {"stream_options": None}, {"stream_options": {}}]
    for options in [*unasked, {"stream_options": {"include_usage": False}}]:
        found = await chunks(http, kind, **options)
        assert all(len(chunk["choices"]) == 1 and "usage" not in chunk for chunk in found), options
    found = await chunks(http, kind, stream_options={"include_usage": True})
    assert found[-1]["choices"] == [] and found[-1]["usage"]["completion_tokens"] == 12
    assert all(chunk["choices"] and chunk.get("usage") is None for chunk in found[:-1])


@pytest.mark.parametrize("kind", ["chat", "text"])
async def test_b13_every_chunk_has_its_shape_and_both_modes_agree(http: aiohttp.ClientSession, kind: str) -> None:
    kinds: list[dict[str, Any]] = [{}, {"max_tokens": 1}, {"stop": "\n"}, {"seed": 5, "temperature": 1}]
    if kind == "chat":
        kinds += [{"tools": [TIME], "tool_choice": choice} for choice in ("none", "auto")]
    for fields in kinds:
        _, whole = await post(http, kind, **fields)
        found = await chunks(http, kind, **fields, stream_options={"include_usage": True})
        head = found[0]
        assert {(chunk["id"], chunk["model"], chunk["created"], chunk["object"]) for chunk in found} == {
            (head["id"], "tiny", head["created"], "chat.completion.chunk" if kind == "chat" else "text_completion")
        }
        reasons = [choice["finish_reason"] for chunk in found for choice in chunk["choices"]]
        assert [reason for reason in reasons if reason is not None] == [whole["choices"][0]["finish_reason"]]
        assert joined(kind, found) == (text_of(kind, whole) or "")
        assert found[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        if kind == "chat":
            roles = [chunk["choices"][0]["delta"].get("role") for chunk in found[:-1]]
            assert roles[0] == "assistant" and not any(roles[1:])
