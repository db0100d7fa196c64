import math

from replica.answer.logprobs import chat_logprobs, completion_logprobs
from replica.answer.text import AnswerToken
from replica.protocol.text import ModelText
from replica.sequence import TokenLogprobs
from replica.token_bytes import TokenBytes


def test_a_chat_s_shape(tiny_text: ModelText) -> None:
    a, first_of_two = tiny_text.encode_plain("a")[0], tiny_text.encode_plain("é")[0]
    tokens = [AnswerToken(a, 0, TokenLogprobs(-0.5, ((a, -0.5), (first_of_two, -math.inf), (0, -2.0))))]
    [entry] = chat_logprobs(tokens, TokenBytes(tiny_text.tokenizer))["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("a", -0.5, [97])
    assert entry["top_logprobs"] == [
        {"token": "a", "logprob": -0.5, "bytes": [97]},
        {"token": "bytes:\\xc3", "logprob": -9999.0, "bytes": [0xC3]},
        {"token": "<|start|>", "logprob": -2.0, "bytes": None},
    ]


def test_a_completion_s_shape(tiny_text: ModelText) -> None:
    a, b = tiny_text.encode_plain("ab")
    tokens = [
        AnswerToken(a, 0, None),
        AnswerToken(b, 1, TokenLogprobs(-3.0, ((a, -1.0),))),
        AnswerToken(b, 2, TokenLogprobs(-0.1, ((b, -0.1),))),
    ]
    assert completion_logprobs(tokens, TokenBytes(tiny_text.tokenizer)) == {
        "tokens": ["a", "b", "b"],
        "token_logprobs": [None, -3.0, -0.1],
        "top_logprobs": [None, {"a": -1.0, "b": -3.0}, {"b": -0.1}],
        "text_offset": [0, 1, 2],
    }
