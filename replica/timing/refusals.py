"""What an engine that computes nothing can't answer. A request for it is refused by name, as if it were not
supported; whatever merely changes how likely tokens are has no effect."""

from replica.protocol.openai import ChatRequest, GenerateRequest
from replica.protocol.strict import RequestError


def refuse_what_needs_logits(request: GenerateRequest) -> None:
    """Raises RequestError."""
    needs = [name for name in request.constraints]
    if request.num_logprobs is not None:
        needs.append("logprobs")
    if request.logit_bias:
        needs.append("logit_bias")
    if isinstance(request, ChatRequest) and request.must_call:
        needs.append("tool_choice")
    if needs:
        raise RequestError(
            f"{needs[0]}: this replica's engine keeps the time of a model without computing it (--engine timing)",
            param=needs[0],
            code="unsupported_value",
        )
