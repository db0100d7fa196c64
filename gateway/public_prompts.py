"""Which of a prompt's first blocks are public: the operator has listed the system prompts that all tenants may share.

What a listed prompt looks like to the model is found by tokenising it before different questions: the tokens that all
begin with come from the prompt and the chat template alone. A request's blocks are public as far as they equal
those, token by token; where the text came from makes no difference. Pure.
"""

from collections.abc import Callable, Iterable, Sequence

from replica.protocol.hashing import BLOCK_SIZE, pack_tokens

_BLOCK_BYTES = 4 * BLOCK_SIZE
_QUESTIONS = ("a", "b", "1", "\u4e00")
"""A tokenizer may join the template's last letters with a question's first ones, so of several."""


class _Node:
    """After some blocks."""

    __slots__ = ("after_run", "children", "run")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node] = {}
        """By the next block."""
        self.run = b""
        """All blocks to the next fork or end, where there is no fork here: compared at once."""
        self.after_run = self


class PublicPrompts:
    """Listed prompts as a tree of their whole blocks."""

    def __init__(self, prompts: Iterable[Sequence[int]] = ()) -> None:
        """By their tokens."""
        self._root = _Node()
        self._blocks = 0
        for tokens in prompts:
            packed = pack_tokens(tokens)
            node = self._root
            for start in range(0, len(packed) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
                node = node.children.setdefault(packed[start : start + _BLOCK_BYTES], _Node())
                self._blocks = max(self._blocks, start // _BLOCK_BYTES + 1)
        _find_runs(self._root)

    def tokens_of(self, prompt: Sequence[int]) -> int:
        """How many of the first ones are public; whole blocks."""
        return self.packed_tokens_of(pack_tokens(prompt[: self._blocks * BLOCK_SIZE])) if self._blocks else 0

    def packed_tokens_of(self, packed: bytes) -> int:
        """The same of a prompt packed by `pack_tokens`."""
        node, start = self._root, 0
        while node.children:
            if node.run and packed.startswith(node.run, start):
                start += len(node.run)
                node = node.after_run
                continue
            child = node.children.get(packed[start : start + _BLOCK_BYTES])
            if child is None:
                break
            node = child
            start += _BLOCK_BYTES
        return start // 4


def _find_runs(root: _Node) -> None:
    """For the root and wherever a fork has been: a run at each node would take memory by the square."""
    begins = [root]
    while begins:
        begin = node = begins.pop()
        run = []
        while len(node.children) == 1:
            ((block, node),) = node.children.items()
            run.append(block)
        begin.run, begin.after_run = b"".join(run), node
        begins += node.children.values()


def public_tokens(encode: Callable[[str], list[int]]) -> list[int]:
    """What every prompt begins with that has a listed one at its head. `encode` tokenises the latter with this
    question."""
    rows = [encode(question) for question in _QUESTIONS]
    same = 0
    while all(same < len(row) and row[same] == rows[0][same] for row in rows):
        same += 1
    return rows[0][:same]
