"""What a gateway asks of a replica, as vLLM and SGLang take it on /v1/completions: token ids for the prompt. Pure.

All that has a default with us is said outright: the engines take theirs from the model's generation_config.json, and a
request must mean the same wherever in a fleet it goes.
"""

from typing import Any

from adopt.config import Engine
from replica.protocol.openai import ChatRequest, CompletionRequest, GenerateRequest, output_limit
from replica.protocol.strict import RequestError

_I63 = 2**63


def engine_request(
    request: GenerateRequest, engine: Engine, model: str, max_context: int, *, tells_salts: bool = True
) -> dict[str, Any]:
    """Raises RequestError, naming the field, for what the engine can't do."""
    prompt = request.prompt_token_ids
    if not prompt:
        raise RequestError("an adopted engine takes prompts from a gateway: as token ids", "prompt_token_ids")
    limit = output_limit(len(prompt), request.max_new_tokens, max_context)
    # A gateway has cut such a request's digest off from the others' by the salt: the engine must do so too.
    if request.cache_salt is not None and not (engine is Engine.VLLM and tells_salts):
        raise _unsupported("cache_salt", engine)
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": limit,
        "n": request.n,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k or -1,
        "min_p": request.min_p,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "repetition_penalty": request.repetition_penalty,
        # Some formats mark calls by special tokens.
        "skip_special_tokens": request.skip_special_tokens and not may_call(request),
    }
    body |= _if_given(request) | _logprobs(request) | _constraint(request, engine)
    if request.stream:
        options = {"include_usage": True}
        if request.stream_options.include_usage and request.stream_options.continuous_usage_stats:
            options["continuous_usage_stats"] = True
        body |= {"stream": True, "stream_options": options}
    return body | (_vllm_only(request) if engine is Engine.VLLM else _sglang_only(request))


def may_call(request: GenerateRequest) -> bool:
    return isinstance(request, ChatRequest) and request.may_call


def _if_given(request: GenerateRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in ("stop", "stop_token_ids", "logit_bias", "min_tokens", "ignore_eos"):
        if value := getattr(request, name):
            fields[name] = value
    if request.seed is not None:
        # As signed 64 bits, which is all they take.
        fields["seed"] = request.seed if request.seed < _I63 else request.seed - 2 * _I63
    if isinstance(request, CompletionRequest) and request.echo:
        fields["echo"] = True
    return fields


def _logprobs(request: GenerateRequest) -> dict[str, Any]:
    return {} if request.num_logprobs is None else {"logprobs": request.num_logprobs}


def _constraint(request: GenerateRequest, engine: Engine) -> dict[str, Any]:
    if isinstance(request, ChatRequest) and request.must_call:
        raise _unsupported("tool_choice", engine)
    if request.regex is not None:
        return {"structured_outputs": {"regex": request.regex}} if engine is Engine.VLLM else {"regex": request.regex}
    if request.grammar is not None:
        if engine is Engine.SGLANG:
            raise _unsupported("grammar", engine)
        return {"structured_outputs": {"grammar": request.grammar}}
    if request.response_format.type == "text":
        return {}
    return {"response_format": request.response_format.model_dump(by_alias=True, exclude_unset=True)}


def _vllm_only(request: GenerateRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in ("include_stop_str_in_output", "return_token_ids", "priority", "cache_salt"):
        if value := getattr(request, name):
            fields[name] = value
    return fields


def _sglang_only(request: GenerateRequest) -> dict[str, Any]:
    # Its priorities may be either way up, and are off by default.
    for name in ("return_token_ids", "priority"):
        if getattr(request, name):
            raise _unsupported(name, Engine.SGLANG)
    return {"no_stop_trim": True} if request.include_stop_str_in_output else {}


def _unsupported(field: str, engine: Engine) -> RequestError:
    return RequestError(f"unsupported field {field}: the replica that this request went to runs {engine}", field)
