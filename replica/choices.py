"""From a request to the sequences that the engine runs for it, each with what becomes of its tokens."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace

import xxhash

from replica.answer.choice import Choice
from replica.answer.text import AnswerText, AnswerToken, echo_of
from replica.answer.tool_calls import CallSplitter
from replica.constraints import constraint_of
from replica.detokenizer import StopChecker, make_detokenizer
from replica.grammar import GrammarError
from replica.protocol.checks import check_length, check_request, check_tokens
from replica.protocol.hashing import chain_of
from replica.protocol.openai import ChatRequest, CompletionRequest, GenerateRequest, output_limit
from replica.protocol.resume import Begun
from replica.protocol.strict import RequestError
from replica.protocol.text import ModelText
from replica.sequence import SamplingParams, Sequence, TokenConstraint
from replica.serving import Serving
from replica.timing.refusals import refuse_what_needs_logits


async def prompts_of(request: GenerateRequest, text: ModelText) -> list[list[int]]:
    """Token ids. Raises RequestError, TemplateError."""
    if request.prompt_token_ids is not None:
        return [request.prompt_token_ids]
    if isinstance(request, ChatRequest):
        return [await asyncio.to_thread(_chat_tokens, request, text)]
    assert isinstance(request, CompletionRequest)
    return await asyncio.to_thread(_completion_tokens, request, text)


def _chat_tokens(request: ChatRequest, text: ModelText) -> list[int]:
    messages = [message.for_template() for message in request.messages]
    rendered = text.render(messages, [tool.for_template() for tool in request.tools])
    check_length(rendered, text, "messages")
    return text.encode_chat(rendered)


def _completion_tokens(request: CompletionRequest, text: ModelText) -> list[list[int]]:
    for prompt in request.prompts:
        if isinstance(prompt, str):
            check_length(prompt, text, "prompt")
    return [text.encode_plain(prompt) if isinstance(prompt, str) else prompt for prompt in request.prompts]


async def make_choices(
    serving: Serving, request: GenerateRequest, request_id: Callable[[int], str], begun: Begun | None = None
) -> list[Choice]:
    """By prompt, `n` of each. `request_id` is given their number, and called last, as others may take an id in the
    meantime. Raises RequestError, TemplateError."""
    check_request(request, serving.text)
    if not serving.has_logits:
        refuse_what_needs_logits(request)
    prompts = await prompts_of(request, serving.text)
    params = [_params(request, prompt, serving) for prompt in prompts]
    constraints = await _constraints(request, serving, len(prompts) * request.n)
    seed = _seed(request, begun)
    first_id = request_id(len(constraints))
    choices = []
    for index, constraint in enumerate(constraints):
        number, repeat = divmod(index, request.n)
        # Blocks wholly within the prompt only: no answer is public.
        public_tokens = min(request.public_prefix_tokens, len(prompts[number]))
        namespace, fork = chain_of(serving.namespace, request.cache_salt, public_tokens)
        sequence = Sequence(
            first_id if index == 0 else f"{first_id}-{index}",
            prompts[number],
            replace(params[number], seed=derived_seed(seed, repeat)),
            namespace,
            priority=request.priority,
            fork=fork,
            constraint=constraint,
            wants_prompt_logprobs=_echoes(request) and request.num_logprobs is not None,
        )
        choices.append(_choice(index, sequence, request, serving.text))
    return choices


def _seed(request: GenerateRequest, begun: Begun | None) -> int:
    if request.seed is not None:
        return request.seed
    return secrets.randbits(63) if begun is None else begun.seed


def derived_seed(seed: int, repeat: int) -> int:
    """Of a prompt's choice number `repeat`; the first one's is the request's own, so it is what n = 1 gives."""
    if repeat == 0:
        return seed
    data = (seed % 2**64).to_bytes(8, "little") + repeat.to_bytes(8, "little")
    return int(xxhash.xxh3_64_intdigest(data))


def _params(request: GenerateRequest, prompt: list[int], serving: Serving) -> SamplingParams:
    """Raises RequestError."""
    text = serving.text
    if not prompt:
        raise RequestError("the prompt has no tokens", param="prompt")
    check_tokens(prompt, text.vocab_size, "prompt")
    limit = output_limit(len(prompt), request.max_new_tokens, serving.max_context)
    own_stops = frozenset() if request.ignore_eos else text.stop_token_ids
    return SamplingParams(
        # To score a prompt one token is sampled, and not shown.
        max_tokens=max(1, limit),
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=max(0, request.top_k),
        min_p=request.min_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=tuple((int(token), bias) for token, bias in request.logit_bias.items()),
        stop_token_ids=own_stops | frozenset(request.stop_token_ids),
        min_tokens=request.min_tokens,
        logprobs=request.num_logprobs,
    )


async def _constraints(request: GenerateRequest, serving: Serving, count: int) -> list[TokenConstraint | None]:
    """One for each sequence, compiled in a thread: that takes up to seconds. Raises RequestError."""
    found = constraint_of(request, serving.text)
    if found is None:
        return [None] * count
    spec, param = found
    try:
        return await asyncio.to_thread(lambda: [serving.grammars.compile(spec) for _ in range(count)])
    except GrammarError as error:
        raise RequestError(f"{param}: {error}", param) from error


def _choice(index: int, sequence: Sequence, request: GenerateRequest, text: ModelText) -> Choice:
    calls = None
    if isinstance(request, ChatRequest) and request.may_call:
        assert text.tool_format is not None
        functions = {tool.function.name for tool in request.tools}
        calls = CallSplitter(text.tool_format, functions, several=request.parallel_tool_calls)
    # Some formats mark calls by special tokens.
    skip_special = request.skip_special_tokens and calls is None

    def new_text(sequence: Sequence) -> AnswerText:
        echo_text = ""
        echo: list[AnswerToken] = []
        if _echoes(request):
            detokenizer = make_detokenizer(text.tokenizer, skip_special=False)
            echo_text, echo = echo_of(detokenizer, sequence.prompt, sequence.prompt_logprobs)
        return AnswerText(
            make_detokenizer(text.tokenizer, skip_special),
            StopChecker(request.stop, request.include_stop_str_in_output),
            min_tokens=request.min_tokens,
            shown_stop_tokens=request.include_stop_str_in_output,
            keeps_ids=request.return_token_ids,
            echo=echo,
            echo_text=echo_text,
        )

    return Choice(index, sequence, new_text, calls, scores_only=request.max_new_tokens == 0)


def _echoes(request: GenerateRequest) -> bool:
    return isinstance(request, CompletionRequest) and request.echo
