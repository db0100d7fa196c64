"""One answer as its tokens come in: text, cut at stop strings, and what is told about each token."""

from collections import deque
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from replica.detokenizer import Detokenizer, StopChecker
from replica.sequence import FinishReason, TokenLogprobs
from replica.step import Output


@dataclass(frozen=True, slots=True)
class AnswerToken:
    token: int
    offset: int
    """Characters of the answer before it."""
    logprobs: TokenLogprobs | None
    """None for a prompt's first token."""


@dataclass(slots=True)
class Piece:
    """What may go out of an answer, and hasn't yet."""

    text: str = ""
    tokens: list[AnswerToken] = field(default_factory=list)
    """Those whose text has gone out; only where logprobs are wanted."""
    token_ids: list[int] = field(default_factory=list)
    """All that were sampled; only where they are wanted."""


class AnswerText:
    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: StopChecker,
        *,
        min_tokens: int = 0,
        shown_stop_tokens: bool = False,
        keeps_ids: bool = False,
        echo: SequenceOf[AnswerToken] = (),
        echo_text: str = "",
    ) -> None:
        """`echo` and its text stand before the answer."""
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._shown_stop_tokens = shown_stop_tokens
        self._keeps_ids = keeps_ids
        self._piece = Piece(echo_text, list(echo))
        self._pending: deque[AnswerToken] = deque()
        self._length = self._sent = len(echo_text)
        """Characters known, and characters that nothing holds back any more."""
        self.finish_reason: FinishReason | None = None
        self.num_tokens = 0

    def push(self, output: Output) -> None:
        """Tokens after the end are left out."""
        if self.finish_reason is not None:
            return
        self.num_tokens += 1
        if self._keeps_ids:
            self._piece.token_ids.append(output.token)
        ends = output.finish_reason is not None
        hidden = ends and not self._shown_stop_tokens and output.token in output.sequence.params.stop_token_ids
        if output.logprobs is not None and not hidden:
            self._pending.append(AnswerToken(output.token, self._length, output.logprobs))
        text = "" if hidden else self._detokenizer.push(output.token)
        self._add(text + self._detokenizer.flush() if ends else text, checked=self.num_tokens >= self._min_tokens)
        if self._stops.stopped:
            self.finish_reason = FinishReason.STOP
        elif ends:
            self.finish_reason = output.finish_reason
            self._send(self._stops.flush())
        if self._pending:
            self._release(all_of_them=ends and not self._stops.stopped)

    @property
    def num_settled(self) -> int:
        """Tokens of which all is known and out that there is to be: the next ones' logprobs may still be held back."""
        return self.num_tokens if self.finish_reason is not None else self.num_tokens - len(self._pending)

    def take(self) -> Piece:
        piece, self._piece = self._piece, Piece()
        unsettled = self.num_tokens - self.num_settled
        if unsettled and piece.token_ids:
            # Ids go with their logprobs.
            piece.token_ids, self._piece.token_ids = piece.token_ids[:-unsettled], piece.token_ids[-unsettled:]
        return piece

    @property
    def has_text(self) -> bool:
        return bool(self._piece.text)

    def _add(self, text: str, checked: bool) -> None:
        self._length += len(text)
        self._send(self._stops.push(text) if checked else text)

    def _send(self, text: str) -> None:
        self._sent += len(text)
        self._piece.text += text

    def _release(self, all_of_them: bool) -> None:
        """A token goes out with the first character after its beginning. Those of a stop string never do."""
        while self._pending and (all_of_them or self._pending[0].offset < self._sent):
            self._piece.tokens.append(self._pending.popleft())


def echo_of(
    detokenizer: Detokenizer, prompt: SequenceOf[int], logprobs: SequenceOf[TokenLogprobs | None]
) -> tuple[str, list[AnswerToken]]:
    """A prompt's text, and its tokens if there are logprobs of them."""
    text: list[str] = []
    tokens = []
    length = 0
    for index, token in enumerate(prompt):
        if logprobs:
            tokens.append(AnswerToken(token, length, logprobs[index]))
        text.append(detokenizer.push(token))
        length += len(text[-1])
    text.append(detokenizer.flush())
    return "".join(text), tokens
