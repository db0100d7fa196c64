import pytest

from replica.protocol.strict import RequestError, parse
from replica.protocol.text import ModelText
from replica.protocol.tokenize import DetokenizeRequest, TokenizeRequest, detokenize, tokenize

MESSAGES = [{"role": "user", "content": "hi"}]


def test_a_prompt_there_and_back(tiny_text: ModelText) -> None:
    for prompt in ("hello 日本", "<|start|>user\nx<|end|>", ""):
        answer = tokenize(tiny_text, TokenizeRequest(prompt=prompt), 512)
        assert (answer["count"], answer["max_model_len"]) == (len(answer["tokens"]), 512)
        assert detokenize(tiny_text, DetokenizeRequest(tokens=answer["tokens"])) == {"prompt": prompt}


def test_messages_are_rendered(tiny_text: ModelText) -> None:
    request = TokenizeRequest.model_validate({"messages": MESSAGES, "return_token_strs": True})
    answer = tokenize(tiny_text, request, 512)
    assert answer["tokens"] == tiny_text.encode_chat(tiny_text.render(MESSAGES))
    assert answer["token_strs"][0] == "<|start|>"
    bare = TokenizeRequest.model_validate({"messages": MESSAGES, "add_generation_prompt": False})
    assert tokenize(tiny_text, bare, 512)["count"] < answer["count"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{}", "prompt"),
        (b'{"prompt": "x", "messages": [{"role": "user", "content": "x"}]}', "prompt"),
        (b'{"prompt": ["x"]}', "prompt"),
        (b'{"prompt": "x", "frob": 1}', "frob"),
    ],
)
def test_a_bad_field_is_named(body: bytes, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(TokenizeRequest, body)
    assert caught.value.param == param


@pytest.mark.parametrize("token", [-1, 300, 10**12])
def test_unknown_tokens_are_refused(tiny_text: ModelText, token: int) -> None:
    with pytest.raises(RequestError, match=str(token)):
        detokenize(tiny_text, DetokenizeRequest(tokens=[1, token]))


def test_tools_that_the_template_would_drop_are_refused(tiny_text: ModelText) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    with pytest.raises(RequestError, match="tools"):
        tokenize(tiny_text, TokenizeRequest.model_validate({"messages": MESSAGES, "tools": tools}), 512)


def test_megabytes_are_refused_unread(tiny_text: ModelText) -> None:
    with pytest.raises(RequestError, match="can't fit"):
        tokenize(tiny_text, TokenizeRequest(prompt="a" * 5_000_000), 512)
