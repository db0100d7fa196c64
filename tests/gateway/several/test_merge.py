from typing import Any

import orjson
import pytest

from gateway.events import DONE
from gateway.several.merge import NoAnswer, StreamMerger, merged, merged_headers, summed
from replica.protocol import headers


def named(given: str) -> str:
    return given.replace("R-p0", "R").replace("R-p1", "R")


def usage(prompt: int, completion: int, cached: int = 0) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return counts | {"prompt_tokens_details": {"cached_tokens": cached}}


def answer(prompt: int, *texts: str, **more: Any) -> dict[str, Any]:
    choices = [{"index": index, "text": text, "finish_reason": "stop"} for index, text in enumerate(texts)]
    return {"id": f"cmpl-R-p{prompt}", "created": 100 + prompt, "model": "m", "choices": choices} | more


def event(value: Any) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def chunk(prompt: int, index: int, text: str, **more: Any) -> dict[str, Any]:
    choices = [{"index": index, "text": text, "logprobs": None, "finish_reason": None}]
    return {"id": f"cmpl-R-p{prompt}", "created": 100 + prompt, "model": "m", "choices": choices} | more


def read(data: bytes) -> list[Any]:
    return [orjson.loads(each.removeprefix(b"data: ")) for each in data.split(b"\n\n") if each]


def test_whole_answers_are_one() -> None:
    bodies = [answer(0, "a", "b", usage=usage(3, 4, 1)), answer(1, "c", "d", usage=usage(5, 6, 2))]
    made = orjson.loads(merged([orjson.dumps(body) for body in bodies], 2, named))
    assert [(choice["index"], choice["text"]) for choice in made["choices"]] == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
    assert (made["id"], made["created"], made["model"]) == ("cmpl-R", 100, "m")
    assert made["usage"] == usage(8, 10, 3)
    assert "usage" not in orjson.loads(merged([orjson.dumps(answer(0, "a"))], 1, named))


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"choices": {}}', b'{"choices": [1]}', b'{"choices": [{}]'])
def test_what_is_no_answer_is_refused(body: bytes) -> None:
    with pytest.raises(NoAnswer):
        merged([orjson.dumps(answer(0, "a")), body], 1, named)


def test_numbers_are_added_up_and_of_others_the_first_counts() -> None:
    assert summed([{"a": 1, "b": {"c": 2}, "d": None}, {"a": 3, "b": {"c": 4, "e": 5}, "d": "x"}]) == {
        "a": 4,
        "b": {"c": 6, "e": 5},
        "d": None,
    }


def test_headers_of_all() -> None:
    one = {headers.REPLICA: "r1", headers.CACHED_TOKENS: "16", headers.PREDICTED_TTFT: "0.5", headers.REASON: "hit"}
    two = {headers.REPLICA: "r2", headers.CACHED_TOKENS: "32", headers.PREDICTED_TTFT: "0.25", headers.REASON: "hit"}
    assert merged_headers([one, {}, two]) == one | {headers.REPLICA: "r1, r2", headers.CACHED_TOKENS: "48"}
    told = [{headers.DELIVERED_TOKENS: "16", "content-type": "a"}, {headers.DELIVERED_TOKENS: "32"}]
    assert merged_headers(told) == {headers.DELIVERED_TOKENS: "48"}
    assert merged_headers([*told, {}]) == merged_headers([*told, {headers.DELIVERED_TOKENS: "x"}]) == {}


def test_events_come_as_they_do_with_their_own_index_and_one_head() -> None:
    merger = StreamMerger(2, 3, named)
    out = merger.feed(1, event(chunk(1, 2, "x"))) + merger.feed(0, event(chunk(0, 1, "y")))
    assert [(each["choices"][0]["index"], each["choices"][0]["text"]) for each in read(out)] == [(5, "x"), (1, "y")]
    assert {(each["id"], each["created"]) for each in read(out)} == {("cmpl-R", 101)}
    assert merger.feed(0, DONE) + merger.feed(1, DONE) == b""
    assert merger.end() == DONE


def test_usage_comes_once_at_the_end() -> None:
    merger = StreamMerger(2, 1, named)
    for prompt in (0, 1):
        merger.feed(prompt, event(chunk(prompt, 0, "x")))
        assert merger.feed(prompt, event(chunk(prompt, 0, "") | {"choices": [], "usage": usage(3, 1, prompt)})) == b""
    out = merger.end()
    assert out.endswith(DONE)
    [told] = read(out.removesuffix(DONE))
    assert (told["choices"], told["usage"], told["id"]) == ([], usage(6, 2, 1), "cmpl-R")


def test_usage_within_chunks_is_of_all_so_far() -> None:
    merger = StreamMerger(2, 1, named)
    merger.expect(0, 3)
    merger.expect(1, 5)
    told = [
        read(merger.feed(0, event(chunk(0, 0, "x", usage=usage(3, 1)))))[0]["usage"],
        read(merger.feed(1, event(chunk(1, 0, "x", usage=usage(5, 1, 4)))))[0]["usage"],
        read(merger.feed(0, event(chunk(0, 0, "x", usage=usage(3, 2)))))[0]["usage"],
    ]
    assert told == [usage(8, 1), usage(8, 2, 4), usage(8, 3, 4)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_however_the_bytes_come(size: int, newline: bytes) -> None:
    data = event(chunk(0, 0, "x\r\ny")) + b": a comment\n\n" + b"event: e\n" + event(chunk(0, 0, "z")) + DONE
    data = data.replace(b"\n", newline)
    merger = StreamMerger(1, 1, named)
    out = b"".join(merger.feed(0, data[at : at + size]) for at in range(0, len(data), size))
    assert out == event(chunk(0, 0, "x\r\ny") | {"id": "cmpl-R"}) + event(chunk(0, 0, "z") | {"id": "cmpl-R"})


def test_an_error_is_the_last_event_of_all() -> None:
    merger = StreamMerger(2, 1, named)
    error = b'{"error":{"message":"no"}}'
    out = merger.feed(0, event(chunk(0, 0, "x"))[:9] + b"\n\n" + b"data: " + error + b"\n\n" + DONE)
    assert out == b"data: " + error + b"\n\n" + DONE
    assert merger.broken
    assert merger.feed(1, event(chunk(1, 0, "x"))) + merger.break_off(error) + merger.end() == b""
