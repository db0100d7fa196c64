"""OpenAI's public wire format: the requests that generate, validated strictly.

A field that isn't supported is refused by name and never silently ignored; an explicit null is the same as absent.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from replica.protocol.messages import ChatMessage, NamedTool, ResponseFormat, Tool, ToolChoice
from replica.protocol.resume import Resume
from replica.protocol.strict import Located, RequestError, Strict, error_body, parse

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "GenerateRequest",
    "RequestError",
    "error_body",
    "output_limit",
    "parse_chat",
    "parse_completion",
]

MAX_STOPS = 4
MAX_CHOICES = 128
"""Of all prompts of one request together."""

MAX_LOGPROBS = 20
MAX_BIASES = 1024
MAX_STOP_TOKENS = 64

_I63 = 2**63


def _stop_list(stop: Any) -> Any:
    """A string is a list of one; empty stops are as if absent."""
    if stop is None:
        return []
    if isinstance(stop, str):
        stop = [stop]
    return [item for item in stop if item != ""] if isinstance(stop, list) else stop


def _token_keys(bias: Any) -> Any:
    for key in bias if isinstance(bias, dict) else ():
        if not (key.isascii() and key.isdigit()):
            raise ValueError(f"keys must be token ids, not {key!r}")
    return bias


_Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
_Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]


class StreamOptions(Strict):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    """With include_usage: usage so far in every chunk."""


class GenerateRequest(Strict):
    """What chat and completion requests share. user, store and metadata have no effect on the answer."""

    model: str
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    user: str | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None

    n: int = Field(default=1, ge=1, le=16)
    temperature: float = Field(default=1.0, ge=0, le=2, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1, allow_inf_nan=False)
    top_k: int = Field(default=0, ge=-1, lt=2**31)
    """0 and -1: all."""
    min_p: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)
    presence_penalty: _Penalty = 0.0
    frequency_penalty: _Penalty = 0.0
    repetition_penalty: float = Field(default=1.0, gt=0, le=10, allow_inf_nan=False)
    logit_bias: Annotated[dict[str, _Bias], BeforeValidator(_token_keys)] = Field(
        default_factory=dict, max_length=MAX_BIASES, json_schema_extra={"propertyNames": {"pattern": "^[0-9]+$"}}
    )
    seed: int | None = Field(default=None, ge=-_I63, le=2 * _I63 - 1)

    stop: Annotated[list[str], BeforeValidator(_stop_list, json_schema_input_type=str | list[str])] = Field(
        default_factory=list, max_length=MAX_STOPS
    )
    stop_token_ids: list[int] = Field(default_factory=list, max_length=MAX_STOP_TOKENS)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    """Go on after the model has ended its answer."""
    min_tokens: int = Field(default=0, ge=0)
    """The model can't end its answer, and no stop string does, before so many tokens."""
    skip_special_tokens: bool = True

    response_format: ResponseFormat = ResponseFormat()
    regex: str | None = Field(default=None, min_length=1)
    """The answer matches this regular expression as a whole."""
    grammar: str | None = Field(default=None, min_length=1)
    """The answer follows this grammar, in Lark's syntax."""

    return_token_ids: bool = False
    priority: int = Field(default=0, ge=-_I63, le=_I63 - 1)
    """Lower goes first."""
    cache_salt: str | None = Field(default=None, min_length=1, max_length=256)
    """Only requests of the same salt share cached prefixes."""
    public_prefix_tokens: int = Field(default=0, ge=0)
    """Of the prompt's first tokens so many are public: their whole blocks are shared whatever the salt. From a gateway
    to a replica, as the field below."""
    prompt_token_ids: list[int] | None = None
    """From a gateway to a replica: the prompt, already tokenised. A gateway refuses it from clients."""
    resume: Resume | None = None
    """From a gateway to a replica as well: an answer that another replica has begun, see resume.py."""

    @model_validator(mode="after")
    def _streams_with_options(self) -> "GenerateRequest":
        if "stream_options" in self.model_fields_set and not self.stream:
            raise Located("goes with stream: true", "stream_options")
        return self

    @model_validator(mode="after")
    def _resumes_a_stream(self) -> "GenerateRequest":
        if self.resume is not None and not self.stream:
            raise Located("goes with stream: true", "resume")
        return self

    @model_validator(mode="after")
    def _has_one_constraint(self) -> "GenerateRequest":
        given = self.constraints
        if len(given) > 1:
            raise Located(f"{' and '.join(given)} can't be combined", given[-1])
        if given and (self.min_tokens or self.ignore_eos):
            name = "min_tokens" if self.min_tokens else "ignore_eos"
            raise Located(f"{given[0]} decides where the answer ends", name)
        return self

    @property
    def constraints(self) -> list[str]:
        """Names of the fields that say what the answer must look like."""
        return [
            *(["response_format"] if self.response_format.type != "text" else []),
            *(["regex"] if self.regex is not None else []),
            *(["grammar"] if self.grammar is not None else []),
        ]

    @property
    def max_new_tokens(self) -> int | None:
        raise NotImplementedError

    @property
    def num_logprobs(self) -> int | None:
        """Of the likeliest tokens beside each one; None: no logprobs at all."""
        raise NotImplementedError


class RouterAdditions(Strict):
    """What the routers of SGLang and vLLM write into every chat request that they pass on, whatever the client sent:
    taken at the value that changes nothing."""

    no_stop_trim: Literal[False] = False
    continue_final_message: Literal[False] = False
    separate_reasoning: Literal[True] = True
    stream_reasoning: Literal[True] = True
    include_reasoning: Literal[True] = True
    return_hidden_states: Literal[False] = False


class ChatRequest(GenerateRequest, RouterAdditions):
    messages: list[ChatMessage] = Field(default_factory=list)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    tools: list[Tool] = Field(default_factory=list, max_length=128)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True

    @model_validator(mode="after")
    def _has_a_prompt(self) -> "ChatRequest":
        if not self.messages and self.prompt_token_ids is None:
            raise Located("must hold at least one message", "messages")
        if self.top_logprobs is not None and not self.logprobs:
            raise Located("needs logprobs: true", "top_logprobs")
        return self

    @model_validator(mode="after")
    def _tools_fit(self) -> "ChatRequest":
        names = [tool.function.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise Located("two functions have the same name", "tools")
        if not self.tools:
            if self.tool_choice not in (None, "none"):
                raise Located("there are no tools to choose from", "tool_choice")
        elif isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise Located(f"there is no function {self.tool_choice.function.name!r}", "tool_choice")
        if not self.must_call and any(tool.function.strict for tool in self.tools):
            raise Located("strict is for calls that must come: tool_choice required or a function", "tools")
        if self.may_call and self.constraints:
            raise Located("can't be combined with tools, unless tool_choice is none", self.constraints[0])
        if self.must_call and (self.min_tokens or self.ignore_eos):
            raise Located("the call decides where the answer ends", "min_tokens" if self.min_tokens else "ignore_eos")
        return self

    @property
    def must_call(self) -> bool:
        return bool(self.tools) and self.tool_choice not in (None, "auto", "none")

    @property
    def may_call(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def max_new_tokens(self) -> int | None:
        """The newer name wins where both are given."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(GenerateRequest):
    prompt: str | list[str] | list[int] | list[list[int]] | None = None
    max_tokens: int = Field(default=16, ge=0)
    echo: bool = False
    best_of: Literal[1] = 1
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)

    @model_validator(mode="after")
    def _has_prompts(self) -> "CompletionRequest":
        if self.prompt_token_ids is None and not (self.prompts and all(self.prompts)):
            raise Located("must be a non-empty string or list of token ids, or a list of such", "prompt")
        if len(self.prompts) * self.n > MAX_CHOICES:
            raise Located(f"a request may have {MAX_CHOICES} choices", "prompt")
        if self.max_tokens == 0 and not self.echo:
            raise Located("must be at least 1, or 0 with echo", "max_tokens")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each a text or token ids."""
        prompt = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            return prompt  # type: ignore[return-value]
        return [] if prompt is None else [prompt]  # type: ignore[list-item]

    @property
    def max_new_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


def parse_chat(body: bytes) -> ChatRequest:
    """Raises RequestError."""
    return parse(ChatRequest, body)


def parse_completion(body: bytes) -> CompletionRequest:
    """Raises RequestError."""
    return parse(CompletionRequest, body)


def output_limit(prompt_tokens: int, max_new_tokens: int | None, max_context: int) -> int:
    """Tokens that the answer may have. Raises RequestError where prompt and answer together don't fit the context."""
    room = max_context - prompt_tokens
    asked = 1 if max_new_tokens is None else max_new_tokens
    if asked > room:
        raise RequestError(
            f"the model's context is {max_context} tokens; the prompt has {prompt_tokens} and the answer was to have"
            f" {'some' if max_new_tokens is None else max_new_tokens}",
            param="messages" if max_new_tokens is None else "max_tokens",
            code="context_length_exceeded",
        )
    return room if max_new_tokens is None else max_new_tokens
