"""Usage: each prompt once, and the answers of all choices."""

from collections.abc import Sequence
from typing import Any

from replica.answer.choice import Choice


def usage_of(choices: Sequence[Choice], n: int) -> dict[str, Any]:
    """Choices come by prompt, `n` of each."""
    prompts = [choice.sequence for choice in choices[::n]]
    prompt_tokens = sum(len(sequence.prompt) for sequence in prompts)
    completion_tokens = sum(choice.num_tokens for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(sequence.num_cached for sequence in prompts)},
    }
