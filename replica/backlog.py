"""How many prompt tokens are still to be computed, a block that several sequences wait for counted once."""

from replica.protocol.hashing import BLOCK_SIZE
from replica.sequence import Sequence


class Backlog:
    """Kept up by differences: with 1,000 prompts of 1,000 tokens waiting, counting anew takes 15 ms, and the load is
    reported ten times a second."""

    def __init__(self) -> None:
        # Of each sequence: its first block that is still to be computed, and its tokens after the last whole block.
        self._entries: dict[Sequence, tuple[int, int]] = {}
        # How many sequences need a block.
        self._needs: dict[int, int] = {}
        self._tails = 0

    @property
    def num_tokens(self) -> int:
        return len(self._needs) * BLOCK_SIZE + self._tails

    def update(self, sequence: Sequence, num_done: int) -> None:
        """`num_done` of its tokens are computed or in the cache: more than last time, or fewer."""
        blocks = sequence.hashes
        start = min(num_done // BLOCK_SIZE, len(blocks))
        tail = len(sequence.tokens) - max(num_done, len(blocks) * BLOCK_SIZE)
        old_start, old_tail = self._entries.get(sequence, (len(blocks), 0))
        if (start, tail) == (old_start, old_tail):
            return
        for block in blocks[start:old_start]:
            self._needs[block] = self._needs.get(block, 0) + 1
        self._forget(blocks[old_start:start])
        self._tails += tail - old_tail
        self._entries[sequence] = start, tail

    def drop(self, sequence: Sequence) -> None:
        """Nothing is to be computed for it any more; a no-op where nothing was."""
        start, tail = self._entries.pop(sequence, (len(sequence.hashes), 0))
        self._forget(sequence.hashes[start:])
        self._tails -= tail

    def _forget(self, blocks: list[int]) -> None:
        for block in blocks:
            self._needs[block] -= 1
            if self._needs[block] == 0:
                del self._needs[block]
