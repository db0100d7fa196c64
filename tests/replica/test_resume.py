"""An answer cut off after any of its events and gone on with: together what it would have been, token for token, and
with int8, where a token's numbers don't depend on what is computed beside it, logprob for logprob."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from replica.protocol import headers
from replica.protocol.resume import USAGE_MARK, Begun, read_marks
from tests.processes import Process
from tests.replica.test_generate import joined
from tests.tool_model import TIME, WEATHER

BEGUN = Begun(created=1_700_000_000, seed=77)
DONE = b"data: [DONE]"
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hello"}],
    "ignore_eos": True,
    "max_tokens": 24,
    "stream_options": {"include_usage": True},
}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "Some text, which is a little longer.", "max_tokens": 24}
GRAMMAR = {name: value for name, value in CHAT.items() if name != "ignore_eos"} | {"max_tokens": 60}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"type": "string"}}}
SCHEMA |= {"required": ["a", "b"]}
JSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}

BODIES: dict[str, dict[str, Any]] = {
    "greedy chat": CHAT | {"temperature": 0},
    "a seed of the gateway's": CHAT,
    "a seed of the client's": CHAT | {"seed": 5},
    "greedy completion": COMPLETION | {"temperature": 0, "ignore_eos": True},
    "the model's own end": COMPLETION | {"max_tokens": 400, "logit_bias": {"1": 4}},
    "two choices": CHAT | {"n": 2},
    "two choices of a prompt": COMPLETION | {"n": 2, "max_tokens": 60, "logit_bias": {"1": 4}},
    "stop strings": CHAT | {"stop": ["e", "th", "aaa"], "max_tokens": 200, "min_tokens": 10},
    "a stop string that goes out": CHAT | {"stop": ["a"], "include_stop_str_in_output": True, "max_tokens": 200},
    "logprobs of a chat": CHAT | {"logprobs": True, "top_logprobs": 2},
    "logprobs behind a stop string": COMPLETION | {"logprobs": 1, "stop": ["e", "xyz"], "max_tokens": 200},
    "token ids": CHAT | {"return_token_ids": True},
    "token ids and logprobs": CHAT | {"return_token_ids": True, "logprobs": True, "stop": ["xyz", "ab"]},
    "echo": COMPLETION | {"echo": True, "logprobs": 1},
    "penalties": CHAT | {"frequency_penalty": 1.5, "presence_penalty": 0.5, "repetition_penalty": 1.2},
    "other samplers": CHAT | {"top_k": 40, "top_p": 0.9, "min_p": 0.01, "min_tokens": 20, "ignore_eos": False},
    "usage in chunks": CHAT | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "any JSON": GRAMMAR | {"response_format": {"type": "json_object"}},
    "a schema": GRAMMAR | {"response_format": JSON_FORMAT},
    "a regular expression": GRAMMAR | {"regex": "[a-z]{3,20}é[0-9]{5}"},
    "calls that must come": GRAMMAR
    | {"tools": [WEATHER, TIME], "tool_choice": "required", "parallel_tool_calls": False},
    "calls that may come": CHAT | {"tools": [TIME], "n": 2},
}


@pytest.fixture(scope="module")
def url(tool_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    arguments = ["replica", "--model", str(tool_folder), "--served-model-name", "tiny", "--kv-memory-gib", "0.05"]
    process = Process([*arguments, "--weights", "int8"], tmp_path_factory.mktemp("replica") / "log")
    yield process.wait_for(r"ready on (http\S+)")
    assert process.stop() == 0


@dataclass(frozen=True)
class Stream:
    id: str
    events: list[tuple[bytes, bytes]]
    """Each with the line before it, without its `data: `."""
    has_end: bool

    @property
    def chunks(self) -> list[Any]:
        return [json.loads(event) for _, event in self.events]

    def resume(self, events: int, choices: int) -> dict[str, Any]:
        """The field, for one who has got so many events."""
        told = read_marks([mark for mark, _ in self.events[:events]])
        assert told is not None
        shown = [told.get(index) for index in range(choices)]
        cached = 7
        return {
            "id": self.id,
            "cached_tokens": cached,
            "choices": [{"token_ids": one.token_ids, "finished": one.finished} if one else {} for one in shown],
        }


async def stream(http: aiohttp.ClientSession, body: dict[str, Any]) -> Stream:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    async with http.post(path, json=body | {"stream": True}, headers={headers.RESUMABLE: BEGUN.encode()}) as response:
        assert response.status == 200, await response.text()
        assert response.headers[headers.RESUMABLE] == "1"
        parts = (await response.read()).split(b"\n\n")
        request_id = response.headers[headers.REQUEST_ID]
    assert parts[-2:] == [DONE, b""]
    events = []
    for part in parts[:-2]:
        mark, event = part.split(b"\n")
        assert mark.startswith(b":") and event.startswith(b"data: {")
        events.append((mark + b"\n", event.removeprefix(b"data: ")))
    return Stream(request_id, events, has_end=bool(events) and events[-1][0] == USAGE_MARK)


def seen(chunks: list[Any]) -> Any:
    """All of an answer that doesn't depend on where its pieces end, and no drawn id of a call."""
    choices = joined([chunk for chunk in chunks if chunk["choices"]])
    for choice in choices.values():
        for call in choice["calls"]:
            del call["id"]
        lists: dict[str, list[Any]] = {}
        for piece in choice["logprobs"]:
            for name, values in piece.items():
                lists.setdefault(name, []).extend(values)
        choice["logprobs"] = lists
    heads = {(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}
    prompts = [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk]
    usage = [chunk["usage"] for chunk in chunks if not chunk["choices"]]
    for one in usage:
        del one["prompt_tokens_details"]
    return choices, heads, prompts, usage


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_an_answer_goes_on_after_any_event(http: aiohttp.ClientSession, body: dict[str, Any]) -> None:
    choices = body.get("n", 1)
    whole = await stream(http, body)
    expected = seen(whole.chunks)
    assert len(expected[1]) == 1 and {head[1] for head in expected[1]} == {BEGUN.created}
    assert all(len(choice["reasons"]) == 1 for choice in expected[0].values())
    for cut in range(len(whole.events) if whole.has_end else len(whole.events) + 1):
        rest = await stream(http, body | {"resume": whole.resume(cut, choices)})
        assert seen(whole.chunks[:cut] + rest.chunks) == expected, f"cut after {cut} events"
        if rest.has_end:
            assert rest.chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 7


async def test_a_seed_of_ones_own_beats_the_gateways(http: aiohttp.ClientSession) -> None:
    own = seen((await stream(http, CHAT | {"seed": 5})).chunks)
    assert own[0] != seen((await stream(http, CHAT)).chunks)[0]
    async with http.post("/v1/chat/completions", json=CHAT | {"seed": 5, "stream": True}) as response:
        assert headers.RESUMABLE not in response.headers
        plain = (await response.read()).decode()
    assert not any(line.startswith(":") for line in plain.splitlines())
    chunks = [json.loads(line.removeprefix("data: ")) for line in plain.split("\n\n")[:-2]]
    assert seen(chunks)[0] == own[0]


@pytest.mark.parametrize(
    ("resume", "said"),
    [
        ({"id": "a", "cached_tokens": 0, "choices": []}, "0 choices"),
        ({"id": "a", "cached_tokens": 0, "choices": [{"token_ids": [300]}]}, "outside the vocabulary"),
        ({"id": "a", "cached_tokens": 0, "choices": [{"token_ids": [7] * 25}]}, "after its end"),
        ({"id": "", "cached_tokens": 0, "choices": [{}]}, "resume"),
        ({"id": "a", "choices": [{}]}, "resume"),
    ],
)
async def test_what_cannot_be_resumed_is_refused(http: aiohttp.ClientSession, resume: Any, said: str) -> None:
    async with http.post("/v1/chat/completions", json=CHAT | {"stream": True, "resume": resume}) as response:
        value = await response.json()
        assert (response.status, value["error"]["param"]) == (400, "resume"), value
        assert said in value["error"]["message"]


async def test_only_a_stream_is_resumed_and_only_along_its_grammar(http: aiohttp.ClientSession) -> None:
    resume = {"id": "a", "cached_tokens": 0, "choices": [{"token_ids": [50]}]}
    plain = {name: value for name, value in CHAT.items() if name != "stream_options"}
    for body, said in [
        (plain | {"resume": resume}, "stream"),
        (GRAMMAR | {"regex": "[0-9]+", "stream": True, "resume": resume}, "grammar"),
    ]:
        async with http.post("/v1/chat/completions", json=body) as response:
            value = await response.json()
            assert response.status == 400 and said in value["error"]["message"], value
