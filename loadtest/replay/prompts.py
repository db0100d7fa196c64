"""Prompts made up from a trace's blocks: token ids that are the same wherever a block is the same, and mean nothing.

Only the ids of plain words are used, which the server itself names: no special token can slip in.
"""

from collections.abc import Sequence

from replica.protocol.hashing import BLOCK_SIZE

_MIN_WORDS = 16
_WORDS = """
about above across after again air all also always an and animal answer any apple around ask away baby back bad
ball bank bath bear beautiful bed before begin bell best better big bird black blue boat body book both bottom box
boy bread bring brother brown build busy but buy call can car care carry cat catch chair change child city class
clean clear clock close cloud coat cold come cook cool corn country cow cross cry cup cut dance dark day deep door
down draw dream dress drink drive dry ear early earth east easy eat egg end enough even every eye face fall family
far farm fast father feet few field find fire first fish five floor flower fly food for forest four free friend
from fruit full garden gave girl give glass go gold good grass green ground group grow half hand happy hard hat
have head hear heart heavy help her here high hill him his hold home horse hot hour house how hundred ice in island
job jump keep kind king know lake land large last late laugh lead leaf learn leave left letter life light like line
list little live long look loud love low make man many map mark may men middle milk mind minute money moon more
morning most mother mountain mouth move much music name near never new next night nine north
"""


def words() -> str:
    """Common words, for the server to tokenise."""
    return " ".join(_WORDS.split())


class PromptMaker:
    def __init__(self, plain_ids: Sequence[int]) -> None:
        """`plain_ids`: what the server makes of common words. Raises ValueError where they are too few."""
        self._alphabet = sorted(set(plain_ids))
        if len(self._alphabet) < _MIN_WORDS:
            raise ValueError(f"the tokenizer has {len(self._alphabet)} ids for a page of common words")
        self._blocks: dict[int, list[int]] = {}

    def prompt(self, blocks: Sequence[int], tokens: int) -> list[int]:
        """`tokens` ids; `blocks` name all its blocks of 16, a last partial one included."""
        prompt: list[int] = []
        for block in blocks:
            prompt += self._blocks.get(block) or self._make(block)
        return prompt[:tokens]

    def _make(self, block: int) -> list[int]:
        """The block's number in the alphabet's base, the lowest digit first, then again and again, each time turned on:
        different numbers have different tokens, and neighbours differ in most."""
        alphabet, size = self._alphabet, len(self._alphabet)
        digits: list[int] = []
        left = block
        while left or not digits:
            left, digit = divmod(left, size)
            digits.append(digit)
        made = [
            alphabet[(digits[place % len(digits)] + 7 * (place // len(digits))) % size] for place in range(BLOCK_SIZE)
        ]
        self._blocks[block] = made
        return made
