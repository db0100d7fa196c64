"""One choice of an answer: a sequence in the engine, and what has come of it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from replica.answer.text import AnswerText, AnswerToken
from replica.answer.tool_calls import Call, CallSplitter
from replica.sequence import FinishReason, Sequence
from replica.step import Output


@dataclass(slots=True)
class Part:
    """What goes to the client at once."""

    text: str
    tokens: list[AnswerToken]
    token_ids: list[int]
    calls: list[Call] = field(default_factory=list)


class Choice:
    def __init__(
        self,
        index: int,
        sequence: Sequence,
        new_text: Callable[[Sequence], AnswerText],
        calls: CallSplitter | None = None,
        scores_only: bool = False,
    ) -> None:
        """`new_text` is called at the first output, when the prompt's logprobs are there. With `scores_only` what is
        generated isn't shown."""
        self.index = index
        self.sequence = sequence
        self.opened = False
        """The client has got its first part."""
        self.closed = False
        """The client has got its finish reason."""
        self.num_calls = 0
        self._told = 0
        self._new_text = new_text
        self._text: AnswerText | None = None
        self._calls = calls
        self._scores_only = scores_only

    def push(self, output: Output) -> bool:
        """Whether it ends with this."""
        if self._text is None:
            self._text = self._new_text(self.sequence)
        if self._scores_only:
            self._text.finish_reason = FinishReason.LENGTH
        else:
            self._text.push(output)
        return self._text.finish_reason is not None

    @property
    def finish_reason(self) -> FinishReason | None:
        return None if self._text is None else self._text.finish_reason

    @property
    def reason_given(self) -> str:
        """What the client is told, once it has all."""
        return "tool_calls" if self.num_calls else str(self.finish_reason)

    @property
    def num_tokens(self) -> int:
        return 0 if self._text is None else self._text.num_tokens

    def take_ids(self) -> list[int]:
        """Tokens that what has been taken so far stands for, and weren't told yet."""
        start = len(self.sequence.prompt)
        settled = 0 if self._text is None else self._text.num_settled
        told, self._told = self._told, settled
        return self.sequence.tokens[start + told : start + settled]

    def skip(self, finished: bool) -> None:
        """The client has all that there is so far, `finished` with the finish reason."""
        self.opened = True
        if self._text is None:
            self._text = self._new_text(self.sequence)
        if finished and self._text.finish_reason is None:
            # Another replica may have less room for an answer.
            self._text.finish_reason = FinishReason.LENGTH
        self.take()
        self._told = self._text.num_settled
        self.closed = finished

    def take(self) -> Part | None:
        """None where there is nothing to show yet. At the end: all that is left."""
        if self._text is None or not (self._text.has_text or self._text.finish_reason):
            return None
        piece = self._text.take()
        part = Part(piece.text, piece.tokens, piece.token_ids)
        if self._calls is not None:
            part.text = self._calls.push(part.text)
            if self._text.finish_reason is not None:
                rest, part.calls = self._calls.finish()
                part.text += rest
                self.num_calls = len(part.calls)
        return part
