import orjson

from gateway.recording.answer import AnswerCount


def chunk(text: str, finish: str | None = None) -> bytes:
    return b"data: " + orjson.dumps({"choices": [{"index": 0, "text": text, "finish_reason": finish}]}) + b"\n\n"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":7,"total_tokens":16}}\n\n'


def test_chunks_are_counted_where_nothing_is_told() -> None:
    count = AnswerCount()
    for data in (chunk("one"), chunk(" two") + chunk(" three"), chunk("", "length"), b"data: [DONE]\n\n"):
        count.feed(data)
    assert (count.tokens, count.told) == (3, None)


def test_the_usage_is_believed_before_the_count() -> None:
    count = AnswerCount()
    count.feed(chunk("one"))
    count.feed(USAGE[:40])
    count.feed(USAGE[40:] + b"data: [DONE]\n\n")
    assert (count.tokens, count.told) == (7, 7)


def test_what_a_model_says_counts_for_nothing() -> None:
    lie = '"completion_tokens":999,"finish_reason":null'
    count = AnswerCount()
    count.feed(chunk(lie))
    assert (count.tokens, count.told) == (1, None)
    count.feed(USAGE + chunk(lie))
    assert count.told == 7


def test_a_whole_answer() -> None:
    count = AnswerCount()
    count.feed(b'{"choices":[{"text":"' + b"x" * 5000 + b'"}],"usage":{"prompt_tokens":9,"completion_tokens": 12}}')
    assert count.tokens == 12
