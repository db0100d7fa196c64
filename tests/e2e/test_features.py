"""Each feature of generation once through a gateway: two replicas on the tiny model, everything else as in life."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from replica.protocol.text import ModelText
from tests.processes import Process
from tests.tiny_model import CONTEXT, VOCAB
from tests.tool_model import TIME, WEATHER

MESSAGES: Any = [{"role": "user", "content": "hello"}]
BASE: dict[str, Any] = {"model": "tiny", "seed": 5, "max_tokens": 16}


@pytest.fixture(scope="module")
def url(tool_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    command = [
        "deploy.cli",
        "up",
        "--model",
        str(tool_folder),
        "--replicas",
        "2",
        "--port",
        "0",
        "--kv-memory-gib",
        "0.05",
    ]
    process = Process(command, tmp_path_factory.mktemp("fleet") / "log")
    yield process.wait_for(r"gateway +(http\S+)")
    assert process.stop() == 0


async def post(http: aiohttp.ClientSession, path: str, body: Any) -> tuple[int, Any, Any]:
    async with http.post(path, json=body) as response:
        return response.status, await response.json(), response.headers


async def complete(http: aiohttp.ClientSession, **fields: Any) -> tuple[Any, int]:
    """The answer, and the cached tokens that the gateway predicted."""
    path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
    status, value, headers = await post(http, path, BASE | fields)
    assert status == 200, value
    return value, int(headers["x-ryokan-cached-tokens"])


def cached(value: Any) -> int:
    return int(value["usage"]["prompt_tokens_details"]["cached_tokens"])


async def test_choices_join_to_the_same_answers(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(**BASE, messages=MESSAGES, n=4)
    texts = dict.fromkeys(range(4), "")
    reasons = []
    stream = await client.chat.completions.create(**BASE, messages=MESSAGES, n=4, stream=True)
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons += [choice.index] if choice.finish_reason else []
    assert [texts[index] for index in range(4)] == [choice.message.content for choice in whole.choices]
    assert sorted(reasons) == [0, 1, 2, 3]


@pytest.mark.parametrize("prompt", ["A text, <|end|>special| and 日本語.", [70, 71, 72]])
async def test_the_prompt_is_echoed(client: openai.AsyncOpenAI, tool_text: ModelText, prompt: Any) -> None:
    expected = prompt if isinstance(prompt, str) else tool_text.decode(prompt)
    arguments = BASE | {"prompt": prompt, "echo": True}
    whole = await client.completions.create(**arguments, logprobs=1)
    assert whole.choices[0].text.startswith(expected)
    logprobs: Any = whole.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None and logprobs.token_logprobs[1] < 0
    streamed = ""
    async for chunk in await client.completions.create(**arguments, stream=True):
        streamed += chunk.choices[0].text
    assert streamed == whole.choices[0].text
    scored = await client.completions.create(**(arguments | {"max_tokens": 0}), logprobs=0)
    assert (scored.choices[0].text, scored.usage and scored.usage.completion_tokens) == (expected, 0)


async def test_a_scored_prompt_is_expected_to_find_nothing_in_the_cache(http: aiohttp.ClientSession) -> None:
    body = {"prompt": "scored " * 20, "echo": True, "max_tokens": 1}
    await complete(http, **body)
    for fields, tokens in (({"logprobs": 0}, 0), ({}, 128)):
        value, predicted = await complete(http, **body, **fields)
        assert cached(value) == predicted == tokens


async def test_tools_are_part_of_the_prompt_that_is_routed_by(
    http: aiohttp.ClientSession, tool_text: ModelText
) -> None:
    body = {"messages": MESSAGES, "tools": [WEATHER, TIME], "return_token_ids": True, "max_tokens": 1}
    first, _ = await complete(http, **body)
    ids = tool_text.encode_chat(
        tool_text.render(MESSAGES, [WEATHER, {"type": "function", "function": {"name": "time"}}])
    )
    assert first["prompt_token_ids"] == ids
    again, predicted = await complete(http, **body)
    assert cached(again) == predicted == (len(ids) - 1) // 16 * 16
    without, _ = await complete(http, **(body | {"tools": None}))
    assert len(without["prompt_token_ids"]) < len(ids)


async def test_a_call_that_must_come(client: openai.AsyncOpenAI) -> None:
    arguments: Any = BASE | {"max_tokens": 200, "messages": MESSAGES, "tools": [WEATHER, TIME]}
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    answer = await client.chat.completions.create(**arguments, tool_choice=choice)
    assert answer.choices[0].finish_reason == "tool_calls"
    [call] = answer.choices[0].message.tool_calls or []
    assert call.type == "function" and json.loads(call.function.arguments)["city"] in ("Kyoto", "Oslo")
    turns = [
        *MESSAGES,
        answer.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    follow_up = await client.chat.completions.create(**(arguments | {"messages": turns, "max_tokens": 4}))
    assert follow_up.choices[0].finish_reason == "length"


async def test_salts_share_nothing_and_route_by_their_own_blocks(http: aiohttp.ClientSession) -> None:
    prompt = {"prompt": "salted " * 20, "max_tokens": 1}
    for salt in ("one", "two", None):
        seen = [await complete(http, **prompt, cache_salt=salt) for _ in range(2)]
        assert [cached(value) for value, _ in seen] == [0, 128]
        assert [predicted for _, predicted in seen] == [0, 128]


async def test_answers_are_shaped_and_told_about(http: aiohttp.ClientSession, tool_text: ModelText) -> None:
    body = {"prompt": "x", "regex": "[ab]{5}", "logprobs": 2, "return_token_ids": True, "priority": -1}
    value, _ = await complete(http, **body)
    [choice] = value["choices"]
    assert len(choice["text"]) == 5 and set(choice["text"]) <= set("ab")
    assert tool_text.decode(choice["token_ids"]) == choice["text"]
    assert len(choice["logprobs"]["tokens"]) == 5
    greedy = {"prompt": "x", "temperature": 0, "ignore_eos": True}
    whole, _ = await complete(http, **greedy)
    biased, _ = await complete(http, **greedy, logit_bias={"70": 100}, return_token_ids=True)
    assert set(biased["choices"][0]["token_ids"]) == {70}
    stop = whole["choices"][0]["text"][3:5]
    stopped, _ = await complete(http, **greedy, stop=[stop], include_stop_str_in_output=True)
    assert stopped["choices"][0]["text"].endswith(stop)
    penalised, _ = await complete(http, **greedy, repetition_penalty=10, min_p=0.5, top_k=40, frequency_penalty=2)
    assert penalised["choices"][0]["text"] != whole["choices"][0]["text"]


async def test_tokens_there_and_back(http: aiohttp.ClientSession) -> None:
    status, value, _ = await post(http, "/tokenize", {"model": "tiny", "prompt": "日本 <|start|>"})
    assert (status, value["max_model_len"]) == (200, CONTEXT)
    assert (await post(http, "/detokenize", {"tokens": value["tokens"]}))[1] == {"prompt": "日本 <|start|>"}
    _, chat, _ = await post(http, "/tokenize", {"messages": MESSAGES, "tools": [TIME]})
    answer, _ = await complete(http, messages=MESSAGES, tools=[TIME], return_token_ids=True)
    assert chat["tokens"] == answer["prompt_token_ids"]
    assert (await post(http, "/tokenize", {"model": "other", "prompt": "x"}))[0] == 404
    assert (await post(http, "/tokenize", {"messages": [], "prompt": 1}))[0] == 400


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/completions", {"prompt": [[5], [VOCAB]]}, "prompt"),
        ("/v1/completions", {"prompt": "x", "logit_bias": {str(VOCAB): 1}}, "logit_bias"),
        ("/v1/completions", {"prompt": "x", "stop_token_ids": [VOCAB]}, "stop_token_ids"),
        ("/v1/completions", {"prompt": "x", "min_tokens": 17}, "min_tokens"),
        ("/v1/completions", {"prompt": "x", "regex": "("}, "regex"),
        ("/v1/completions", {"prompt": "x", "prompt_token_ids": [1]}, "prompt_token_ids"),
        ("/v1/completions", {"prompt": "x" * 512, "echo": True, "max_tokens": 1}, "max_tokens"),
        ("/v1/chat/completions", {"messages": MESSAGES, "tools": [TIME], "tool_choice": "all"}, "tool_choice"),
    ],
)
async def test_what_can_t_be_served_is_named(
    http: aiohttp.ClientSession, path: str, fields: dict[str, Any], param: str
) -> None:
    for streamed in (False, True):
        status, value, _ = await post(http, path, BASE | {"stream": streamed} | fields)
        assert (status, value["error"]["param"]) == (400, param), value
