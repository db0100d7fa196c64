"""Grammars that an answer must follow, compiled for one tokenizer. The library is llguidance: an Earley parser over the
bytes of tokens, which gives the mask of a step in some ten microseconds."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from replica.protocol.text import ModelText
from replica.sequence import ConstraintError, TokenConstraint

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_MAX_SOURCE_BYTES = 2**18
_MAX_COMPILED = 32
_WHITESPACE = r"( |\n {0,16})?"
"""Between the parts of JSON, so that a model can't fill its answer with nothing: a space, or a line's indent."""
_MAX_MESSAGE = 500


class GrammarError(ValueError):
    """The schema, regex or grammar can't be used; the message says why."""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    kind: Literal["json_object", "json_schema", "regex", "grammar"]
    source: str
    """JSON text of the schema, the regular expression, or a grammar in Lark's syntax; empty for json_object."""


class GrammarCompiler:
    """Used from any thread: compiling takes from milliseconds to seconds, so not from the engine's."""

    def __init__(self, text: ModelText) -> None:
        self._text = text
        self._tokenizer: LLTokenizer | None = None
        self._tokenizer_lock = threading.Lock()
        self._compiled: OrderedDict[GrammarSpec, GrammarConstraint] = OrderedDict()
        self._compiled_lock = threading.Lock()

    def compile(self, spec: GrammarSpec) -> TokenConstraint:
        """A fresh constraint at its start. Raises GrammarError."""
        with self._compiled_lock:
            start = self._compiled.get(spec)
            if start is not None:
                self._compiled.move_to_end(spec)
                return start.copy()
        start = self._compile(spec)
        with self._compiled_lock:
            self._compiled[spec] = start
            while len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
            return start.copy()

    def _compile(self, spec: GrammarSpec) -> "GrammarConstraint":
        from llguidance import LLMatcher

        if len(spec.source.encode()) > _MAX_SOURCE_BYTES:
            raise GrammarError(f"the {spec.kind} has more than {_MAX_SOURCE_BYTES} bytes")
        matcher = LLMatcher(self._tokenizer_once(), _library_grammar(spec), log_level=0, limits=_limits())
        try:
            return GrammarConstraint(matcher)
        except ConstraintError as error:
            raise GrammarError(f"the {spec.kind} can't be used: {error}") from error

    def _tokenizer_once(self) -> "LLTokenizer":
        """Only where a grammar is asked for: it takes 0.3 s and 28 MiB."""
        from llguidance import LLTokenizer

        with self._tokenizer_lock:
            if self._tokenizer is None:
                try:
                    self._tokenizer = LLTokenizer(
                        self._text.tokenizer.to_str(),
                        n_vocab=self._text.vocab_size,
                        eos_token=sorted(self._text.stop_token_ids) or None,
                    )
                except ValueError as error:
                    raise GrammarError(f"this model's tokenizer can't follow grammars: {error}") from error
            return self._tokenizer


class GrammarConstraint:
    """A TokenConstraint. The mask is computed ahead, when a token is accepted: so a library that gives up does so with
    a token at hand to end the answer with, and nothing can fail between the forward and the sampler."""

    def __init__(self, matcher: "LLMatcher", bitmask: bytes | None = None) -> None:
        """Raises ConstraintError."""
        self._matcher = matcher
        self._bitmask = self._next_bitmask() if bitmask is None else bitmask

    def copy(self) -> "GrammarConstraint":
        return GrammarConstraint(self._matcher.deep_copy(), self._bitmask)

    def bitmask(self) -> bytes:
        return self._bitmask

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._bitmask = self._next_bitmask()

    @property
    def is_finished(self) -> bool:
        return self._matcher.is_stopped()

    def _next_bitmask(self) -> bytes:
        bitmask = b"" if self._matcher.is_error() else self._matcher.compute_bitmask()
        if self._matcher.is_error():
            message = self._matcher.get_error().removesuffix("<non-verbose/>").strip()
            raise ConstraintError(message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]} …")
        return bitmask


def _library_grammar(spec: GrammarSpec) -> str:
    """Raises GrammarError."""
    from llguidance import LLMatcher

    if spec.kind == "regex":
        return LLMatcher.grammar_from_regex(spec.source)
    if spec.kind == "grammar":
        return LLMatcher.grammar_from_lark(spec.source)
    schema = '{"type": "object"}' if spec.kind == "json_object" else spec.source
    try:
        return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": _WHITESPACE})
    except ValueError as error:
        raise GrammarError(f"the schema is no JSON object: {error}") from error


def _limits() -> "LLParserLimits":
    """Tighter than the library's own. A mask that takes longer than about 4 ms would hold up the whole batch. The most
    expensive grammars found take 2 s to compile and 40 MB, where `(a{1000}){1000}` took 3 s and 160 MB before."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=200_000,
        step_lexer_fuel=50_000,
        max_lexer_states=10_000,  # of 1 to 2 kB each
        max_grammar_size=100_000,
        verbose_errors=False,
    )
