"""Rendered chat text to token ids, segment by segment.

Special tokens cut text exactly, so each segment between two of them is tokenised once and remembered: a long shared
system prompt or an earlier turn costs one look-up. Whether a tokenizer really cuts exactly is tried at start-up.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from sys import maxsize

from gateway.prompts.memo import SegmentMemo
from gateway.prompts.skeleton import Parts
from gateway.prompts.token_ids import TokenIds
from replica.protocol.text import ModelText

log = logging.getLogger(__name__)

_FIRSTS_MAX = 3
"""Letters with which special tokens begin: one after the other is looked for quicker than a pattern."""


Filling = tuple[str, tuple[tuple[int, str], ...]]
"""A segment with holes: how it begins, and then whose content follows, and what follows that."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A skeleton, cut at its special tokens."""

    steps: tuple[TokenIds | Filling, ...]
    """What is tokenised already, and what has to be filled in first."""
    chars: int
    """Beside the holes."""


class SegmentEncoder:
    def __init__(self, text: ModelText, memo: SegmentMemo) -> None:
        self._text = text
        self._memo = memo
        # Longest first: where one special token begins another, the tokenizer prefers the longer.
        by_length = sorted(filter(None, text.special_tokens), key=len, reverse=True)
        ids = {special: text.tokenizer.token_to_id(special) for special in by_length}
        self._ids = {special: TokenIds.of([token]) for special, token in ids.items() if token is not None}
        self._split = re.compile("(" + "|".join(map(re.escape, self._ids)) + ")") if self._ids else None
        firsts = {special[0] for special in self._ids}
        self._firsts = tuple(firsts) if len(firsts) <= _FIRSTS_MAX else None
        self._overlap = any(_overlap(one, other) for one in self._ids for other in self._ids)
        self.exact = self._is_exact()
        if not self.exact:
            log.warning("the tokenizer of %s doesn't split exactly at special tokens: no memo by segment", text.name)

    def encode(self, rendered: str) -> list[int]:
        return self.ids(rendered).tokens

    def ids(self, rendered: str) -> TokenIds:
        if not self.exact:
            return TokenIds.of(self._text.encode_chat(rendered))
        return self._by_segment(rendered)

    def encode_known(self, rendered: str, max_new: int) -> TokenIds | None:
        """The same, if no more than so many characters of it must be tokenised anew."""
        if not self.exact:
            return None
        found: list[TokenIds] = []
        return None if self._add(rendered, max_new, found) < 0 else TokenIds.joined(found)

    def plan(self, parts: Parts) -> Plan | None:
        """None where this tokenizer must see the whole."""
        if not self.exact or self._overlap:
            return None
        steps: list[TokenIds | Filling] = []
        segment: list[str | int] = []
        for part in parts:
            for piece in self._pieces(part) if isinstance(part, str) else (part,):
                if isinstance(piece, str) and piece in self._ids:
                    self._end(segment, steps)
                    segment = []
                    _extend(steps, self._ids[piece])
                elif piece != "":
                    segment.append(piece)
        self._end(segment, steps)
        return Plan(tuple(steps), sum(len(part) for part in parts if isinstance(part, str)))

    def fill(self, plan: Plan, contents: Sequence[str], max_new: int = maxsize) -> TokenIds | None:
        """As `encode_known` of the chat with these contents."""
        found: list[TokenIds] = []
        for step in plan.steps:
            if isinstance(step, TokenIds):
                found.append(step)
                continue
            text, rest = step
            for place, after in rest:
                text += contents[place] + after
            max_new = self._add(text, max_new, found)
            if max_new < 0:
                return None
        return TokenIds.joined(found)

    def _add(self, text: str, max_new: int, found: list[TokenIds]) -> int:
        """How many more characters may be tokenised anew; negative: it would have been more than that."""
        # What is remembered as one segment holds no special token, so that needn't be looked for.
        known = self._memo.get(text)
        if known is not None:
            found.append(known)
            return max_new
        for piece in self._pieces(text) if self._may_hold_special(text) else (text,):
            special = self._ids.get(piece)
            if special is not None:
                found.append(special)
            elif piece:
                max_new = self._add_segment(piece, max_new, found)
                if max_new < 0:
                    break
        return max_new

    def _add_segment(self, segment: str, max_new: int, found: list[TokenIds]) -> int:
        ids = self._memo.get(segment)
        if ids is None:
            max_new -= len(segment)
            if max_new < 0:
                return max_new
            ids = TokenIds.of(self._text.encode_chat(segment))
            self._memo.put(segment, ids)
        found.append(ids)
        return max_new

    def _by_segment(self, rendered: str) -> TokenIds:
        found: list[TokenIds] = []
        self._add(rendered, maxsize, found)
        return TokenIds.joined(found)

    def _pieces(self, text: str) -> list[str]:
        return self._split.split(text) if self._split else [text]

    def _may_hold_special(self, text: str) -> bool:
        if self._firsts is None:
            return True
        return any(first in text for first in self._firsts)

    def _end(self, segment: list[str | int], steps: list[TokenIds | Filling]) -> None:
        texts = [part for part in segment if isinstance(part, str)]
        if len(texts) < len(segment):
            steps.append(_filling(segment))
        elif texts:
            _extend(steps, TokenIds.of(self._text.encode_chat("".join(texts))))

    def _is_exact(self) -> bool:
        return all(self._by_segment(sample).tokens == self._text.encode_chat(sample) for sample in _corpus(self._ids))


def _filling(segment: Sequence[str | int]) -> Filling:
    first, rest = "", list[tuple[int, str]]()
    for part in segment:
        if isinstance(part, int):
            rest.append((part, ""))
        elif rest:
            rest[-1] = rest[-1][0], rest[-1][1] + part
        else:
            first += part
    return first, tuple(rest)


def _extend(steps: list[TokenIds | Filling], ids: TokenIds) -> None:
    last = steps[-1] if steps else None
    if isinstance(last, TokenIds):
        steps[-1] = TokenIds.joined((last, ids))
    else:
        steps.append(ids)


def _overlap(one: str, other: str) -> bool:
    """Whether text might be cut otherwise for what stands around it: one special token begins within the other, or
    goes on where the other ends."""
    tails = [one[start:] for start in range(len(one)) if start > 0 or one != other]
    return any(tail.startswith(other) or other.startswith(tail) for tail in tails)


def _corpus(specials: Iterable[str]) -> list[str]:
    """Texts on which tokenizers that don't cut exactly have been seen to differ."""
    texts = [
        "Hello",
        " leading space",
        "trailing space ",
        "\n\nlines\n",
        "  ",
        "",
        "naïve façade — “quotes”…",
        "日本語のテキスト と 한국어",
        "emoji 👩‍👩‍👧‍👦 🇫🇷 and e\u0301 combining",
        "\u200b\ufeff\u00a0odd spaces\u3000",
        "a" * 300,
        "12345.678e-9 x=[1,2]; // code\tTab",
    ]
    specials = list(specials)
    first = specials[0] if specials else ""
    samples = list(texts)
    for special in specials:
        samples += [special + text + special for text in texts]
        samples += [f"word{special} word {special}{special}{first}\n{special}"]
    return samples
