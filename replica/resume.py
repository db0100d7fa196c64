"""An answer that another replica has begun: its tokens are gone through here as if they had been generated here, so
that grammar, tool calls, stop strings and unfinished characters stand where they stood. Then the sequence is what a
preempted one is: its prompt and its tokens are prefilled, and the sampler's numbers go on by position."""

from collections.abc import Sequence as SequenceOf

from replica.answer.choice import Choice
from replica.engine_base import advance
from replica.protocol.checks import check_tokens
from replica.protocol.resume import Resume, ResumedChoice
from replica.protocol.strict import RequestError
from replica.sequence import FinishReason
from replica.step import Output


def resume_choices(choices: SequenceOf[Choice], resume: Resume, vocab_size: int) -> None:
    """Not on the event loop: a grammar takes up to milliseconds a token. Raises RequestError."""
    if len(choices) != len(resume.choices):
        raise RequestError(f"resume: {len(resume.choices)} choices, where the request has {len(choices)}", "resume")
    for choice, resumed in zip(choices, resume.choices, strict=True):
        check_tokens(resumed.token_ids, vocab_size, "resume")
        _replay(choice, resumed)
        sequence = choice.sequence
        # The cache's part of the prompt is counted when a sequence is first admitted, which was elsewhere.
        sequence.num_preemptions = 1
        sequence.num_cached = resume.cached_tokens if choice.index == 0 else 0


def _replay(choice: Choice, resumed: ResumedChoice) -> None:
    sequence = choice.sequence
    if resumed.token_ids:
        # What was echoed has been shown, with its logprobs.
        sequence.wants_prompt_logprobs = False
    for token in resumed.token_ids:
        if choice.finish_reason is not None:
            raise RequestError(f"resume: choice {choice.index} goes on after its end", "resume")
        sequence.append(token)
        reason = advance(sequence) or sequence.finish_reason()
        if reason is FinishReason.ERROR:
            raise RequestError(f"resume: choice {choice.index} doesn't follow its grammar", "resume")
        choice.push(Output(sequence, token, reason))
    if resumed.token_ids or resumed.finished:
        choice.skip(finished=resumed.finished)
