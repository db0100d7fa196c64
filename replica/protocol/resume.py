"""How an answer goes on at another replica when the one that has begun it is lost.

A gateway asks for it by the header `x-ryokan-resumable: CREATED SEED`: when the answer was begun, in Unix seconds, and
the seed where the client gave none. A replica that can does as it says, answers with the same header, and writes a line
before each event of its stream, a comment to any reader of server-sent events:

    :0 17 42 99      with the event that follows, choice 0 has got these tokens more
    :0 17 .          and with this one its finish reason
    :.               what follows is the usage of the stream's end

What isn't told of is generated again: the next token depends on the tokens before it and on nothing else. The request
that goes to another replica has the field `resume`. That replica begins with the first token that isn't told of.
"""

import re
from dataclasses import dataclass, field

from pydantic import Field

from replica.protocol.strict import Strict

ENDS = b" ."
USAGE_MARK = b":.\n"

_BEGUN = re.compile(r"([0-9]{1,16}) ([0-9]{1,20})")
_MARK = re.compile(rb":([0-9]{1,4})((?: [0-9]{1,10})*)( \.)?\n?")


@dataclass(frozen=True, slots=True)
class Begun:
    """What all attempts at one answer have in common."""

    created: int
    seed: int

    def encode(self) -> str:
        return f"{self.created} {self.seed}"

    @classmethod
    def decode(cls, header: str) -> "Begun | None":
        """None for what is no such header."""
        found = _BEGUN.fullmatch(header)
        return None if found is None else cls(int(found.group(1)), int(found.group(2)))


class ResumedChoice(Strict):
    token_ids: list[int] = Field(default=[])
    """That the client has been shown."""
    finished: bool = False
    """It has got the finish reason as well."""


class Resume(Strict):
    """From a gateway to a replica: what there is of the answer. A gateway refuses it from clients."""

    id: str = Field(min_length=1, max_length=128)
    """Of the request, as the first replica called it."""
    cached_tokens: int = Field(ge=0)
    """As the first replica has told them: the usage repeats it."""
    choices: list[ResumedChoice]
    """In order of their indexes, all of them."""


def mark(index: int, token_ids: list[int], ends: bool) -> bytes:
    """The line before an event."""
    return f":{index}{''.join(f' {token}' for token in token_ids)}".encode() + (ENDS if ends else b"") + b"\n"


@dataclass(slots=True)
class Told:
    """What the lines have told of one choice."""

    token_ids: list[int] = field(default_factory=list)
    finished: bool = False


def read_marks(marks: list[bytes]) -> dict[int, Told] | None:
    """By choice; lines of usage are passed over. None where one can't be read."""
    told: dict[int, Told] = {}
    for line in marks:
        if line == USAGE_MARK:
            continue
        found = _MARK.fullmatch(line)
        if found is None:
            return None
        choice = told.setdefault(int(found.group(1)), Told())
        choice.token_ids += map(int, found.group(2).split())
        choice.finished = choice.finished or found.group(3) is not None
    return told
