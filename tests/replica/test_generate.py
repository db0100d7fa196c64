"""What a replica answers, feature by feature: a real process on the tiny model, the official client, plain HTTP."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import torch

from replica.protocol.text import ModelText
from tests.processes import Process
from tests.tiny_model import CONTEXT, VOCAB
from tests.tool_model import TIME, WEATHER

MESSAGES: Any = [{"role": "user", "content": "hello"}]
CHAT: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "ignore_eos": True, "max_tokens": 24, "seed": 5}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "Some text.", "ignore_eos": True, "max_tokens": 24, "seed": 5}
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def url(tool_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    arguments = ["replica", "--model", str(tool_folder), "--served-model-name", "tiny", "--kv-memory-gib", "0.05"]
    process = Process([*arguments, "--weights", "fp32"], tmp_path_factory.mktemp("replica") / "log")
    yield process.wait_for(r"ready on (http\S+)")
    assert process.stop() == 0


async def post(http: aiohttp.ClientSession, path: str, body: Any) -> tuple[int, Any]:
    async with http.post(path, json=body) as response:
        return response.status, await response.json()


async def answer(http: aiohttp.ClientSession, body: dict[str, Any]) -> Any:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    status, value = await post(http, path, body)
    assert status == 200, value
    return value


async def stream(http: aiohttp.ClientSession, body: dict[str, Any]) -> list[Any]:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    async with http.post(path, json=body | {"stream": True}) as response:
        assert response.status == 200, await response.text()
        events = (await response.read()).decode().strip().split("\n\n")
    assert events.pop() == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def joined(chunks: list[Any]) -> dict[int, dict[str, Any]]:
    """By index: text, finish reasons, logprobs and token ids put together again."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for item in chunk["choices"]:
            choice = choices.setdefault(item["index"], {"text": "", "reasons": [], "logprobs": [], "token_ids": []})
            delta = item.get("delta", item)
            choice["text"] += delta.get("content") or delta.get("text") or ""
            choice["token_ids"] += item.get("token_ids", [])
            choice["calls"] = choice.get("calls", []) + delta.get("tool_calls", [])
            if item["finish_reason"]:
                choice["reasons"].append(item["finish_reason"])
            if item["logprobs"]:
                choice["logprobs"].append(item["logprobs"])
    return choices


def text_of(choice: Any) -> str:
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


@pytest.mark.parametrize("body", [CHAT, COMPLETION])
async def test_several_choices_are_the_same_streamed_and_whole(
    http: aiohttp.ClientSession, body: dict[str, Any]
) -> None:
    whole = await answer(http, body | {"n": 4})
    again = await answer(http, body | {"n": 4})
    assert whole["choices"] == again["choices"]
    texts = [text_of(choice) for choice in whole["choices"]]
    assert len(set(texts)) == 4
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    chunks = await stream(http, body | {"n": 4})
    choices = joined(chunks)
    assert [choices[index]["text"] for index in range(4)] == texts
    assert all(choice["reasons"] == ["length"] for choice in choices.values())
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    alone = await answer(http, body)
    assert text_of(alone["choices"][0]) == texts[0]
    usage = whole["usage"]
    assert usage["completion_tokens"] == 4 * 24
    assert usage["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    indexes = [item["index"] for chunk in chunks for item in chunk["choices"]]
    assert indexes != sorted(indexes), "the choices come side by side"


async def test_several_prompts_have_their_own_choices(http: aiohttp.ClientSession, tool_text: ModelText) -> None:
    prompts = ["first", "the second one"]
    both = await answer(http, COMPLETION | {"prompt": prompts, "n": 2})
    single = [await answer(http, COMPLETION | {"prompt": prompt, "n": 2}) for prompt in prompts]
    assert [choice["text"] for choice in both["choices"]] == [
        choice["text"] for one in single for choice in one["choices"]
    ]
    assert [choice["index"] for choice in both["choices"]] == [0, 1, 2, 3]
    assert both["usage"]["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in single)
    ids = [tool_text.encode_plain(prompt) for prompt in prompts]
    by_ids = await answer(http, COMPLETION | {"prompt": ids, "n": 2})
    assert [choice["text"] for choice in by_ids["choices"]] == [choice["text"] for choice in both["choices"]]


async def test_a_choice_that_a_stop_string_ends_is_computed_no_further(http: aiohttp.ClientSession) -> None:
    body = CHAT | {"n": 2, "max_tokens": 300}
    first, second = (text_of(choice) for choice in (await answer(http, body))["choices"])
    stop = next(first[at : at + 3] for at in range(100) if first[at : at + 3] not in second)
    before = await metric(http, "ryokan_replica_generation_tokens_total")
    value = await answer(http, body | {"stop": stop})
    assert [choice["finish_reason"] for choice in value["choices"]] == ["stop", "length"]
    assert await metric(http, "ryokan_replica_generation_tokens_total") - before < 450


async def test_usage_so_far_comes_in_every_chunk_if_asked_for(http: aiohttp.ClientSession) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await stream(http, COMPLETION | {"stream_options": options, "n": 2})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 48
    assert chunks[-1]["choices"] == []


async def test_logprobs_of_a_chat_with_the_official_client(client: openai.AsyncOpenAI) -> None:
    arguments: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 30, "seed": 3, "temperature": 1.3}
    arguments |= {"logprobs": True, "top_logprobs": 3, "extra_body": {"ignore_eos": True}}
    whole = await client.chat.completions.create(**arguments)
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    data = b"".join(bytes(item.bytes or []) for item in logprobs.content)
    assert data.decode(errors="replace") == whole.choices[0].message.content
    for item in logprobs.content:
        assert len(item.top_logprobs) == 3
        assert item.logprob <= item.top_logprobs[0].logprob
        assert [top.logprob for top in item.top_logprobs] == sorted(
            (t.logprob for t in item.top_logprobs), reverse=True
        )
    streamed: list[Any] = []
    async for chunk in await client.chat.completions.create(**arguments, stream=True):
        part = chunk.choices[0].logprobs
        streamed += (part.content or []) if part else []
    assert streamed == logprobs.content


async def test_echo_scores_the_prompt_as_a_direct_forward_does(
    client: openai.AsyncOpenAI, tool_folder: Path, tool_text: ModelText
) -> None:
    from transformers import AutoModelForCausalLM

    prompt = "Ōsaka, and more. " * 5
    completion = await client.completions.create(
        model="tiny", prompt=prompt, echo=True, max_tokens=6, logprobs=2, temperature=0
    )
    [choice] = completion.choices
    # The client's type knows nothing of the first token's null.
    logprobs: Any = choice.logprobs
    assert choice.text.startswith(prompt)
    ids = tool_text.encode_plain(prompt)
    assert (logprobs.token_logprobs[0], logprobs.top_logprobs[0]) == (None, None)
    model = AutoModelForCausalLM.from_pretrained(str(tool_folder), dtype=torch.float32)
    with torch.inference_mode():
        direct = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    for position, (token, got) in enumerate(zip(ids[1:], logprobs.token_logprobs[1:], strict=False)):
        assert got == pytest.approx(direct[position, token].item(), abs=1e-3)
        top = logprobs.top_logprobs[position + 1]
        assert max(top.values()) == pytest.approx(direct[position].max().item(), abs=1e-3)
    # A token begins where its offset says, and the parts of one character share theirs.
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        if offset < len(prompt):
            assert token.startswith("bytes:") or choice.text[offset:].startswith(token)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_prompt_is_scored_alone(http: aiohttp.ClientSession, tool_text: ModelText, streamed: bool) -> None:
    prompt = "x" * CONTEXT
    body = {"model": "tiny", "prompt": prompt, "echo": True, "max_tokens": 0, "logprobs": 1}
    if streamed:
        chunks = await stream(http, body | {"stream_options": {"include_usage": True}})
        [choice] = joined(chunks).values()
        usage, reasons = chunks[-1]["usage"], choice["reasons"]
        count = sum(len(part["tokens"]) for part in choice["logprobs"])
    else:
        value = await answer(http, body)
        [choice] = value["choices"]
        usage, reasons, count = value["usage"], [choice["finish_reason"]], len(choice["logprobs"]["tokens"])
    assert choice["text"] == prompt
    assert (usage["prompt_tokens"], usage["completion_tokens"], reasons, count) == (CONTEXT, 0, ["length"], CONTEXT)


async def test_streamed_logprobs_of_a_completion_join_to_the_whole(http: aiohttp.ClientSession) -> None:
    body = COMPLETION | {"logprobs": 2, "echo": True, "n": 2, "stop": "e"}
    whole = await answer(http, body)
    for index, choice in joined(await stream(http, body)).items():
        expected = whole["choices"][index]
        assert choice["text"] == expected["text"]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [item for part in choice["logprobs"] for item in part[name]] == expected["logprobs"][name]


@pytest.mark.parametrize("at", range(10))
async def test_a_stop_string_at_any_place(http: aiohttp.ClientSession, at: int) -> None:
    body = CHAT | GREEDY
    text = text_of((await answer(http, body))["choices"][0])
    stop = text[at : at + 4]
    cut = text[: text.index(stop)]
    whole = await answer(http, body | {"stop": ["never", stop], "logprobs": True})
    assert text_of(whole["choices"][0]) == cut
    assert whole["choices"][0]["finish_reason"] == "stop"
    entries = whole["choices"][0]["logprobs"]["content"]
    # The token in which the stop begins is left out unless some of its text is in the answer.
    data = b"".join(bytes(entry["bytes"] or []) for entry in entries)
    assert data.decode(errors="replace") in (cut, cut + stop[:1])
    [streamed] = joined(await stream(http, body | {"stop": stop})).values()
    assert (streamed["text"], streamed["reasons"]) == (cut, ["stop"])
    shown = await answer(http, body | {"stop": stop, "include_stop_str_in_output": True})
    assert text_of(shown["choices"][0]) == cut + stop


async def test_a_stop_token_ends_the_answer_unseen(http: aiohttp.ClientSession, tool_text: ModelText) -> None:
    body = COMPLETION | GREEDY | {"return_token_ids": True}
    ids = (await answer(http, body))["choices"][0]["token_ids"]
    stop = ids[7]
    end = ids.index(stop)
    value = await answer(http, body | {"stop_token_ids": [stop], "logprobs": 0})
    [choice] = value["choices"]
    assert (choice["token_ids"], choice["finish_reason"]) == (ids[: end + 1], "stop")
    assert choice["text"] == tool_text.decode(ids[:end])
    assert len(choice["logprobs"]["tokens"]) == end
    assert value["usage"]["completion_tokens"] == end + 1
    shown = await answer(http, body | {"stop_token_ids": [stop], "include_stop_str_in_output": True})
    assert shown["choices"][0]["text"] == tool_text.decode(ids[: end + 1])


@pytest.mark.parametrize("body", [CHAT, COMPLETION])
async def test_token_ids_come_back(http: aiohttp.ClientSession, tool_text: ModelText, body: dict[str, Any]) -> None:
    body = body | {"return_token_ids": True, "stop": "never"}
    value = await answer(http, body)
    [choice] = value["choices"]
    assert tool_text.decode(choice["token_ids"]) == text_of(choice)
    assert len(choice["token_ids"]) == value["usage"]["completion_tokens"]
    prompt = (
        tool_text.encode_chat(tool_text.render(MESSAGES))
        if "messages" in body
        else tool_text.encode_plain(body["prompt"])
    )
    assert (value if "messages" in body else choice)["prompt_token_ids"] == prompt
    chunks = await stream(http, body)
    assert joined(chunks)[0]["token_ids"] == choice["token_ids"]
    given = [chunk if "messages" in body else chunk["choices"][0] for chunk in chunks]
    assert [item["prompt_token_ids"] for item in given if "prompt_token_ids" in item] == [prompt]


async def test_sampling_parameters_reach_the_sampler(http: aiohttp.ClientSession, tool_text: ModelText) -> None:
    body = COMPLETION | {"return_token_ids": True}
    greedy = (await answer(http, body | GREEDY))["choices"][0]["token_ids"]

    async def ids(**fields: Any) -> list[int]:
        return list((await answer(http, body | fields))["choices"][0]["token_ids"])

    assert await ids(temperature=2, top_k=1) == greedy
    assert await ids(temperature=2, min_p=1) == greedy
    assert await ids(temperature=2, top_p=1e-9) == greedy
    assert await ids(temperature=2, top_k=-1) != greedy
    token = tool_text.encode_plain("q")[0]
    assert set(await ids(logit_bias={str(token): 100}, temperature=0)) == {token}
    for penalty in ({"repetition_penalty": 10}, {"frequency_penalty": 2}, {"presence_penalty": 2}):
        assert await ids(**GREEDY, **penalty) != greedy


async def test_salts_share_no_prefixes(http: aiohttp.ClientSession) -> None:
    async def cached(**fields: Any) -> int:
        body = {"model": "tiny", "prompt": "z" * 100, "max_tokens": 1} | fields
        return int((await answer(http, body))["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [await cached(cache_salt="a"), await cached(cache_salt="a")] == [0, 96]
    assert [await cached(cache_salt="b"), await cached(), await cached(cache_salt="b")] == [0, 0, 96]


async def test_d09_tenants_share_the_public_blocks_and_no_others(http: aiohttp.ClientSession) -> None:
    async def cached(text: str, **fields: Any) -> int:
        body = {"model": "tiny", "prompt": text, "max_tokens": 40, "min_tokens": 40, "ignore_eos": True} | fields
        return int((await answer(http, body))["usage"]["prompt_tokens_details"]["cached_tokens"])

    public, private = "p" * 40, "q" * 60
    a, b = ({"cache_salt": salt, "public_prefix_tokens": len(public)} for salt in ("of A", "of B"))
    assert [await cached(public + private, **a), await cached(public + private, **a)] == [0, 96]
    assert [await cached(public + private, **b), await cached(public + private, **b)] == [32, 96]
    assert await cached(public + private) == 32


async def test_d09_an_answer_to_a_public_prompt_is_its_tenant_s_own(http: aiohttp.ClientSession) -> None:
    """Also where more is said to be public than there is."""
    prompt = {"model": "tiny", "prompt": [7] * 32, "min_tokens": 40, "max_tokens": 40, "public_prefix_tokens": 10**6}
    choice = (await answer(http, prompt | {"cache_salt": "of A", "return_token_ids": True}))["choices"][0]
    longer = {"model": "tiny", "prompt": [7] * 32 + choice["token_ids"], "max_tokens": 1, "public_prefix_tokens": 32}
    cached = [
        (await answer(http, longer | {"cache_salt": salt}))["usage"]["prompt_tokens_details"]["cached_tokens"]
        for salt in ("of B", "of A")
    ]
    assert cached == [32, 64]


@pytest.mark.parametrize(
    ("fields", "check"),
    [
        ({"regex": "[0-9]{3}-[ab]+x"}, lambda text: text[3] == "-"),
        ({"grammar": 'start: "yes" | "no"'}, lambda text: text in ("yes", "no")),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "s",
                        "schema": {
                            "type": "object",
                            "properties": {"a": {"enum": [1, 2]}},
                            "required": ["a"],
                            "additionalProperties": False,
                        },
                    },
                }
            },
            lambda text: json.loads(text)["a"] in (1, 2),
        ),
    ],
)
@pytest.mark.parametrize("n", [1, 3])
async def test_answers_follow_what_the_request_says(
    http: aiohttp.ClientSession, fields: dict[str, Any], check: Any, n: int
) -> None:
    body = CHAT | {"ignore_eos": False, "max_tokens": 200, "n": n, "logit_bias": {"1": 20}} | fields
    value = await answer(http, body)
    assert [choice["finish_reason"] for choice in value["choices"]] == ["stop"] * n
    assert all(check(text_of(choice)) for choice in value["choices"])
    streamed = joined(await stream(http, body))
    assert [streamed[index]["text"] for index in range(n)] == [text_of(choice) for choice in value["choices"]]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"regex": "("}, "regex"),
        ({"grammar": "nonsense"}, "grammar"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "frob"}}}},
            "response_format.json_schema.schema",
        ),
    ],
)
async def test_a_grammar_that_can_t_be_used_is_a_400(
    http: aiohttp.ClientSession, fields: dict[str, Any], param: str
) -> None:
    for streamed in (False, True):
        body = CHAT | {"ignore_eos": False, "stream": streamed} | fields
        status, value = await post(http, "/v1/chat/completions", body)
        assert (status, value["error"]["param"]) == (400, param)


CALL_BODY: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "seed": 5, "max_tokens": 200}
CALL_BODY |= {"tools": [WEATHER, TIME], "parallel_tool_calls": False}


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"weather", "time"}),
        ({"type": "function", "function": {"name": "weather"}}, {"weather"}),
    ],
)
async def test_calls_that_must_come(client: openai.AsyncOpenAI, choice: Any, names: set[str]) -> None:
    whole = await client.chat.completions.create(**CALL_BODY, tool_choice=choice, n=2)
    for item in whole.choices:
        assert (item.finish_reason, item.message.content) == ("tool_calls", None)
        assert item.message.tool_calls is not None
        [call] = item.message.tool_calls
        assert call.type == "function"
        assert call.function.name in names
        if call.function.name == "weather":
            assert json.loads(call.function.arguments)["city"] in ("Kyoto", "Oslo")
    by_index: dict[int, list[Any]] = {0: [], 1: []}
    reasons = []
    async for chunk in await client.chat.completions.create(**CALL_BODY, tool_choice=choice, n=2, stream=True):
        [part] = chunk.choices
        by_index[part.index] += part.delta.tool_calls or []
        assert not part.delta.content
        reasons += [part.finish_reason] if part.finish_reason else []
    assert reasons == ["tool_calls"] * 2
    for index, calls in by_index.items():
        expected = whole.choices[index].message.tool_calls
        assert expected is not None and expected[0].type == "function"
        assert [(call.index, call.function.name, call.function.arguments) for call in calls] == [
            (0, expected[0].function.name, expected[0].function.arguments)
        ]


async def test_with_tools_an_answer_may_still_be_text(http: aiohttp.ClientSession) -> None:
    for choice in ("auto", "none"):
        value = await answer(http, CHAT | {"tools": [TIME], "tool_choice": choice})
        assert value["choices"][0]["finish_reason"] == "length"
        assert "tool_calls" not in value["choices"][0]["message"]


async def test_a_conversation_with_calls_is_rendered_with_them(
    http: aiohttp.ClientSession, tool_text: ModelText
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "time", "arguments": '{"zone": "é"}'}}
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    value = await answer(http, CHAT | {"messages": turns, "tools": [TIME], "return_token_ids": True, "max_tokens": 1})
    prompt = tool_text.decode(value["prompt_token_ids"])
    assert '{"name": "time"}\n' in prompt
    assert '<tool_call>{"name": "time", "arguments": {"zone": "é"}}</tool_call>' in prompt
    assert "tool\nnoon" in prompt and "None" not in prompt
    _, tokenized = await post(http, "/tokenize", {"messages": turns, "tools": [TIME]})
    assert tokenized["tokens"] == value["prompt_token_ids"]


async def test_tokens_there_and_back(http: aiohttp.ClientSession) -> None:
    for prompt in ("plain", "日本語 <|start|>x"):
        status, value = await post(http, "/tokenize", {"model": "tiny", "prompt": prompt, "return_token_strs": True})
        assert (status, value["max_model_len"]) == (200, CONTEXT)
        assert value["count"] == len(value["tokens"]) == len(value["token_strs"])
        assert (await post(http, "/detokenize", {"tokens": value["tokens"]}))[1] == {"prompt": prompt}
    assert (await post(http, "/tokenize", {"model": "other", "prompt": "x"}))[0] == 404
    assert (await post(http, "/detokenize", {"tokens": [VOCAB]}))[0] == 400


BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": [""]}, "prompt"),
    ({"prompt": [VOCAB]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [[1], [10**12]]}, "prompt"),
    ({"prompt_token_ids": [-1]}, "prompt"),
    ({"logit_bias": {str(VOCAB): 1}}, "logit_bias"),
    ({"stop_token_ids": [VOCAB]}, "stop_token_ids"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 10**12}, "max_tokens"),
    ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
    ({"prompt": "x" * (CONTEXT + 1), "echo": True, "max_tokens": 0}, "max_tokens"),
    ({"prompt": ["fine", "x" * (CONTEXT + 1)]}, "max_tokens"),
]


@pytest.mark.parametrize(("fields", "param"), BAD)
async def test_bad_requests_never_reach_the_engine(
    http: aiohttp.ClientSession, fields: dict[str, Any], param: str
) -> None:
    good = asyncio.create_task(answer(http, COMPLETION | {"max_tokens": 100}))
    for streamed in (False, True):
        status, value = await post(http, "/v1/completions", COMPLETION | {"stream": streamed} | fields)
        assert (status, value["error"]["param"]) == (400, param), value
    assert (await good)["usage"]["completion_tokens"] == 100


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_frees_all_choices(http: aiohttp.ClientSession, streamed: bool) -> None:
    body = CHAT | {"n": 16, "max_tokens": 400, "stream": streamed}
    asking = asyncio.create_task(http.post("/v1/chat/completions", json=body))
    async with asyncio.timeout(10):
        while await running(http) != 16:
            await asyncio.sleep(0.01)
    if streamed:
        (await asking).close()
    asking.cancel()
    async with asyncio.timeout(5):
        while await running(http):
            await asyncio.sleep(0.02)
    assert (await post(http, "/cache/reset", {}))[0] == 200


async def running(http: aiohttp.ClientSession) -> float:
    return await metric(http, "ryokan_replica_num_requests_running", "ryokan_replica_num_requests_waiting")


async def metric(http: aiohttp.ClientSession, *names: str) -> float:
    async with http.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.split()[1]) for line in lines if line.split()[0] in names)
