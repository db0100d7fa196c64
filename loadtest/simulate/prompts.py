"""Requests of a simulation, and the tokens that they are made of.

A prompt is given as ids of its blocks of 16 tokens; an id stands for the whole prefix up to and with its block, as in
published traces. All 16 tokens of a block are its id. An answer's tokens are what the conversation's next prompt has
at their place, where there is one, so that blocks of answers are found again as they are in life.
"""

from array import array
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

import numpy as np

from replica.protocol.hashing import BLOCK_SIZE, child_hash, pack_tokens

FILLER = 1 << 31
"""Ids from here on are of blocks that no other prompt has."""

NAMESPACE = 0

AGGRESSOR = "aggressor"
"""The tenant that the others are to be kept from."""


@dataclass(frozen=True, slots=True)
class Row:
    """A request as a trace or a generator gives it."""

    at_s: float
    """When it comes; of a session's later turn: how long after the answer before it."""
    tokens: int
    blocks: SequenceOf[int]
    """Ids of all its blocks, a last partial one included."""
    output: int
    """Real tokens of the answer."""
    after: int = -1
    """The row whose answer it waits for; -1: none."""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    number: int
    at_s: float
    tokens: int
    """Of the prompt. One may stand for several real ones: see `Workload.stride`."""
    output: int
    """Real tokens of the answer."""
    after: int
    ids: SequenceOf[int]
    """Of the blocks of prompt and answer, as far as they are known."""
    hashes: list[int]
    """Of the prompt's whole blocks."""
    whole_blocks: int
    """Of prompt and answer, as far as ids are known."""
    tenant: str = ""

    def without_answer(self) -> "Request":
        """With an answer of one token."""
        return replace(self, output=1, whole_blocks=self.tokens // BLOCK_SIZE)

    def packed(self) -> bytearray:
        """The prompt's tokens as `Sequence.packed` has them."""
        blocks = -(-self.tokens // BLOCK_SIZE)
        ids = np.array(self.ids[:blocks], dtype="<u4")
        return bytearray(np.repeat(ids, BLOCK_SIZE)[: self.tokens].tobytes())

    def answer(self, start: int, count: int) -> list[int]:
        """Tokens [start, start + count) of prompt and answer."""
        ids, filler = self.ids, FILLER + self.number
        places = range(start, start + count)
        return [ids[p // BLOCK_SIZE] if p // BLOCK_SIZE < len(ids) else filler for p in places]


def make_requests(rows: SequenceOf[Row], successors: SequenceOf[int], stride: int = 1) -> list[Request]:
    """`successors[i]` is the row whose prompt goes on from row i's prompt and answer; -1: none."""
    known: list[SequenceOf[int]] = [()] * len(rows)
    for number in range(len(rows) - 1, -1, -1):
        row, successor = rows[number], successors[number]
        whole = row.tokens // BLOCK_SIZE
        ids = row.blocks
        if successor >= 0 and rows[successor].tokens > row.tokens:
            end = row.tokens + -(-row.output // stride)
            theirs = known[successor][: -(-rows[successor].tokens // BLOCK_SIZE)]
            ids = [*row.blocks[:whole], *theirs[whole : -(-end // BLOCK_SIZE)]]
        known[number] = array("I", ids)
    hash_of: dict[int, int] = {}
    return [_request(number, row, known[number], stride, hash_of) for number, row in enumerate(rows)]


def _request(number: int, row: Row, ids: SequenceOf[int], stride: int, hash_of: dict[int, int]) -> Request:
    # The last token of an answer is never computed.
    end = row.tokens + -(-row.output // stride) - 1
    whole = min(len(ids), end // BLOCK_SIZE)
    return Request(number, row.at_s, row.tokens, row.output, row.after, ids, _hashes(row, hash_of), whole, row.tenant)


def _hashes(row: Row, hash_of: dict[int, int]) -> list[int]:
    """An id stands for its whole prefix, so a block's hash is computed once for all prompts that have it."""
    parent = NAMESPACE
    hashes = []
    for block in row.blocks[: row.tokens // BLOCK_SIZE]:
        known = hash_of.get(block)
        if known is None:
            known = hash_of[block] = child_hash(parent, pack_tokens([block] * BLOCK_SIZE))
        parent = known
        hashes.append(known)
    return hashes


def later_extensions(rows: SequenceOf[Row]) -> list[int]:
    """For rows without sessions: the next row that has all whole blocks of this one and more, where the last of them
    is this row's own. A prompt that only repeats what many share has no successor."""
    first_with: dict[int, int] = {}
    for number, row in enumerate(rows):
        for block in row.blocks[: row.tokens // BLOCK_SIZE]:
            first_with.setdefault(block, number)
    next_with: dict[int, int] = {}
    successors = [-1] * len(rows)
    for number in range(len(rows) - 1, -1, -1):
        whole = rows[number].blocks[: rows[number].tokens // BLOCK_SIZE]
        if whole and first_with[whole[-1]] == number:
            successors[number] = next_with.get(whole[-1], -1)
        for block in whole:
            next_with[block] = number
    return successors
