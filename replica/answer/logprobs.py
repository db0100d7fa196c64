"""Logprobs in the two shapes that OpenAI has for them."""

from collections.abc import Iterable
from typing import Any

from replica.answer.text import AnswerToken
from replica.token_bytes import TokenBytes

_LOWEST = -9999.0
"""Stands for minus infinity, which JSON can't say; OpenAI's own value."""


def chat_logprobs(tokens: Iterable[AnswerToken], names: TokenBytes) -> dict[str, Any]:
    content = []
    for item in tokens:
        assert item.logprobs is not None
        entry = _chat_entry(item.token, item.logprobs.logprob, names)
        content.append(entry | {"top_logprobs": [_chat_entry(token, lp, names) for token, lp in item.logprobs.top]})
    return {"content": content}


def completion_logprobs(tokens: Iterable[AnswerToken], names: TokenBytes) -> dict[str, Any]:
    """The token itself is among the top ones in any case."""
    shape: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for item in tokens:
        logprobs = item.logprobs
        shape["tokens"].append(names.text(item.token))
        shape["text_offset"].append(item.offset)
        shape["token_logprobs"].append(None if logprobs is None else _finite(logprobs.logprob))
        if logprobs is None:
            shape["top_logprobs"].append(None)
            continue
        top: dict[str, float] = {}
        for token, logprob in (*logprobs.top, (item.token, logprobs.logprob)):
            # Two tokens may have one text: the likelier stays.
            top.setdefault(names.text(token), _finite(logprob))
        shape["top_logprobs"].append(top)
    return shape


def _chat_entry(token: int, logprob: float, names: TokenBytes) -> dict[str, Any]:
    data = names.bytes(token)
    return {
        "token": names.text(token),
        "logprob": _finite(logprob),
        "bytes": None if data is None else list(data),
    }


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)
