"""What an engine says that computes nothing: sentences of common English words, in the model's own tokens.

The next token is a function of all tokens before it and of nothing else: each replica gives a prompt the same answer,
goes on with another's in the same words, and prompts that differ anywhere are answered differently. Words are whole
tokens, so that an answer sent back in the next turn has the same ids again, and finds its blocks.
"""

import string
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

import xxhash
from tokenizers import Tokenizer

from replica.sequence import Sequence

_VOCABULARY = """
a about above across after again air all also always an and any are around art as ask at away back be because before
begin best better between big black blue body book both bring build but by call can car care carry city clear close
cold color come could country cut dark day deep do door down each early earth east easy eat end even every eye face
fall family far fast field fire first fish five floor follow food for form four free friend from full garden gave
get give go good great green ground group grow half hand hard have head hear heart heat help here high hold home
hour house how in into island it just keep kind king know land large last late learn leave left less let life light
like line list little live long look love made make man many mark mean men miss money moon more morning most mother
move much music must name near need never new next night no north not note now of off often old on once one only
open or order other our out over own page paper part pass past people place plan plant play point power put quick
quiet rain read real red rest right river road rock room round run same school sea second see seem set she ship
short should show side sing sleep slow small snow so some song soon sound south stand star start state stay still
stone stop story street strong such sun sure table take talk teach tell ten than that the their them then there
these they thing think this those three through time to together too top town travel tree true turn two under until
up use very voice wait walk wall want warm was watch water way we week well west what wheel when where which while
white who why will wind window winter with wood word work world would write year yet you young your
"""

_WORDS_PER_SENTENCE = 12
_SENTENCES_PER_ANSWER = 12
"""On average. Answers that may end have about 150 tokens, by a geometric distribution."""

_MIN_OF_A_KIND = 32


class Words:
    def __init__(self, tokenizer: Tokenizer, end_ids: frozenset[int]) -> None:
        """`end_ids` are the model's own stop tokens."""
        self._end_ids = end_ids
        words = _VOCABULARY.split()
        # A vocabulary of single bytes has no words.
        otherwise = _ids(tokenizer, string.printable[:95])
        self._firsts = _ids(tokenizer, (word.capitalize() for word in words), otherwise)
        self._openers = _ids(tokenizer, (f" {word.capitalize()}" for word in words), otherwise)
        self._words = _ids(tokenizer, (f" {word}" for word in words), otherwise)
        self._full_stop = next(iter(_ids(tokenizer, ".")), None)
        self._within_sentence = {*self._firsts, *self._openers, *self._words} - {self._full_stop}

    def next(self, sequence: Sequence) -> int:
        """The token after the last one. Of the request's parameters only those that say where an answer ends count."""
        params, last = sequence.params, sequence.tokens[-1]
        may_end = sequence.num_output >= params.min_tokens
        banned = self._end_ids if may_end else self._end_ids | params.stop_token_ids
        # 3 µs for 8,000 tokens.
        digest = xxhash.xxh3_64_intdigest(sequence.packed)
        chance = digest >> 32
        if last == self._full_stop:
            ends = params.stop_token_ids & self._end_ids
            if ends and may_end and chance % _SENTENCES_PER_ANSWER == 0:
                return min(ends)
            return _pick(self._openers, digest, banned)
        if last not in self._within_sentence:
            return _pick(self._firsts, digest, banned)
        full_stop = self._full_stop
        if full_stop is not None and full_stop not in banned and chance % _WORDS_PER_SENTENCE == 0:
            return full_stop
        return _pick(self._words, digest, banned)


def _ids(tokenizer: Tokenizer, texts: Iterable[str], otherwise: SequenceOf[int] = ()) -> SequenceOf[int]:
    """Of those texts that are a token each; `otherwise` where they are too few."""
    found = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if len(ids) == 1 and tokenizer.decode(ids).strip() == text.strip():
            found.append(ids[0])
    return otherwise if otherwise and len(found) < _MIN_OF_A_KIND else found


def _pick(tokens: SequenceOf[int], digest: int, banned: frozenset[int]) -> int:
    start = digest % len(tokens)
    return next((token for token in (*tokens[start:], *tokens[:start]) if token not in banned), tokens[start])
