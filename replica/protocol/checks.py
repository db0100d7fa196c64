"""What a request may ask of one model: checked by gateways, before a replica sees it, and by replicas."""

from collections.abc import Iterable, Sequence

from replica.protocol.messages import ChatMessage, Tool
from replica.protocol.openai import ChatRequest, GenerateRequest
from replica.protocol.strict import RequestError
from replica.protocol.text import ModelText


def check_request(request: GenerateRequest, text: ModelText) -> None:
    """Raises RequestError."""
    if request.logit_bias:
        check_tokens(map(int, request.logit_bias), text.vocab_size, "logit_bias")
    if request.stop_token_ids:
        check_tokens(request.stop_token_ids, text.vocab_size, "stop_token_ids")
    least, most = request.min_tokens, request.max_new_tokens
    if most is not None and least > most:
        raise RequestError("min_tokens is larger than max_tokens", "min_tokens")
    if isinstance(request, ChatRequest):
        check_tools(request.messages, request.tools, text)


def check_tokens(tokens: Iterable[int], vocab_size: int, param: str) -> None:
    """Raises RequestError."""
    wrong = next((token for token in tokens if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise RequestError(f"{param}: token id {wrong} is outside the vocabulary of {vocab_size}", param)


def check_length(prompt: str, text: ModelText, param: str) -> None:
    """Megabytes needn't be tokenised to be refused. Raises RequestError."""
    if len(prompt) > text.max_chars:
        message = f"the model's context is {text.max_context} tokens; {len(prompt)} characters can't fit"
        raise RequestError(message, param, "context_length_exceeded")


def check_tools(messages: Sequence[ChatMessage], tools: Sequence[Tool], text: ModelText) -> None:
    """Raises RequestError where the chat template leaves them out, or has calls written in a way we can't read."""
    if text.tool_format is not None:
        return
    if tools:
        raise _no_tools("tools", text)
    for message in messages:
        if message.tool_calls or message.role == "tool":
            raise _no_tools("messages", text)


def _no_tools(param: str, text: ModelText) -> RequestError:
    why = f"the chat template of {text.name} knows no tools, or has calls written in an unknown format"
    return RequestError(f"{param}: {why}", param)
