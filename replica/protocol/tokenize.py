"""The endpoints /tokenize and /detokenize, the same on gateways and replicas; the shapes are vLLM's."""

from typing import Any, Literal

from pydantic import Field, model_validator

from replica.protocol.checks import check_length, check_tokens, check_tools
from replica.protocol.messages import ChatMessage, Tool
from replica.protocol.strict import Located, Strict
from replica.protocol.text import ModelText


class TokenizeRequest(Strict):
    """A prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] = Field(default_factory=list)
    tools: list[Tool] = Field(default_factory=list)
    add_special_tokens: bool | None = None
    """Those that the tokenizer itself adds: by default to a prompt, and not to messages, whose template writes them."""
    add_generation_prompt: bool = True
    return_token_strs: bool = False
    continue_final_message: Literal[False] = False
    """Written by vLLM's router."""

    @model_validator(mode="after")
    def _has_one_text(self) -> "TokenizeRequest":
        if (self.prompt is None) == (not self.messages):
            raise Located("give prompt or messages", "prompt")
        return self


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: list[int]


def tokenize(text: ModelText, request: TokenizeRequest, max_context: int) -> dict[str, Any]:
    """Raises RequestError, TemplateError."""
    if request.prompt is None:
        check_tools(request.messages, request.tools, text)
        rendered = text.render(
            [message.for_template() for message in request.messages],
            [tool.for_template() for tool in request.tools],
            request.add_generation_prompt,
        )
        check_length(rendered, text, "messages")
        tokens = text.encode_plain(rendered, add_special_tokens=request.add_special_tokens is True)
    else:
        check_length(request.prompt, text, "prompt")
        tokens = text.encode_plain(request.prompt, add_special_tokens=request.add_special_tokens is not False)
    strings = [text.tokenizer.id_to_token(token) for token in tokens] if request.return_token_strs else None
    return {"count": len(tokens), "max_model_len": max_context, "tokens": tokens, "token_strs": strings}


def detokenize(text: ModelText, request: DetokenizeRequest) -> dict[str, Any]:
    """Special tokens are in the text, so that it gives the same tokens again. Raises RequestError."""
    check_tokens(request.tokens, text.vocab_size, "tokens")
    return {"prompt": text.decode(request.tokens, skip_special_tokens=False)}
