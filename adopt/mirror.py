"""What an engine holds, from its KV events, as our block hashes. Pure.

Engines name blocks by hashes of their own, over blocks of their own size. Ours are computed from the tokens that each
stored block carries, chained along its parents; whatever the engine's block size, one of our blocks is held while all
engine blocks on the way to its end are. Engines may drop a parent before its child: then the child's credit goes, and
comes back when the parent does.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from adopt.events import Cleared, Event, Key, Removed, Stored
from replica.protocol.hashing import BLOCK_SIZE, child_hash

_TOKEN_BYTES = 4
_STEP = BLOCK_SIZE * _TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class Changes:
    cleared: bool
    """First of all: nothing from before is held."""
    added: tuple[int, ...]
    removed: tuple[int, ...]


class _Node:
    """An engine's block, or a name of one that is known only as a parent; or, with a salt for its name, the place
    before all prompts of that salt."""

    __slots__ = ("blocks", "chain", "children", "copies", "dead", "key", "live", "packed", "parent", "tail")

    def __init__(self, key: Key | str) -> None:
        self.key = key
        self.parent: _Node | None = None
        self.children: set[_Node] = set()
        self.copies = 0
        """vLLM may hold the same block several times, and tells of each."""
        self.packed = b""
        """Its tokens, until `blocks` is known."""
        self.blocks: tuple[int, ...] | None = None
        """Our blocks that end in it. None: it isn't known what comes before it."""
        self.chain = 0
        """Our hash at the end of the last of our blocks so far."""
        self.tail = b""
        """The tokens after that."""
        self.dead = False
        """No prompt finds it: it depends on more than text, or its name stands for two different blocks."""
        self.live = False
        """It and all before it are held."""


class Mirror:
    def __init__(self, namespace: Callable[[str], int]) -> None:
        """`namespace` gives the parent of a prompt's first block, for a salt ("" is none)."""
        self._namespace = namespace
        self._nodes: dict[Key | str, _Node] = {}
        self._held: dict[int, int] = {}
        """Our blocks, each with the number of engine blocks that it ends in. Those may be several where their size is
        no multiple of ours."""
        self._group: int | None = None
        self._added: set[int] = set()
        self._removed: set[int] = set()
        self._cleared = False
        self.block_tokens = BLOCK_SIZE
        """In a block of the engine, by the one that it has stored last."""
        self.conflicts = 0
        """Blocks stored under a name that had stood for another. Not chained names, as in old SGLangs."""

    @property
    def held(self) -> set[int]:
        return set(self._held)

    @property
    def num_held(self) -> int:
        return len(self._held)

    @property
    def num_nodes(self) -> int:
        """Engine blocks remembered, held or not, and salts."""
        return len(self._nodes)

    def match(self, hashes: Sequence[int]) -> int:
        """How many of a prompt's blocks are held, from its beginning."""
        return next((index for index, block in enumerate(hashes) if block not in self._held), len(hashes))

    def apply(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Stored):
                self._store(event)
            elif isinstance(event, Removed):
                self._remove(event)
            else:
                assert isinstance(event, Cleared)
                self.clear()

    def clear(self) -> None:
        self._nodes.clear()
        self._held.clear()
        self._added.clear()
        self._removed.clear()
        self._group = None
        self._cleared = True

    def take_changes(self) -> Changes:
        """Net, since the last time."""
        changes = Changes(self._cleared, tuple(self._added), tuple(self._removed))
        self._added.clear()
        self._removed.clear()
        self._cleared = False
        return changes

    def _store(self, event: Stored) -> None:
        if not event.keys or not event.whole_prefix or not self._is_followed(event.group):
            return
        size = len(event.packed) // len(event.keys)
        if size:
            self.block_tokens = size // _TOKEN_BYTES
        parent = self._parent(event)
        for index, key in enumerate(event.keys):
            node = self._nodes.get(key)
            packed = event.packed[index * size : (index + 1) * size] if index < event.plain else None
            if node is None or node.parent is None:
                node = self._define(node or self._new(key), parent, packed)
            elif not self._agrees(node, parent, packed):
                self._disown(node)
            node.copies += 1
            self._raise(node)
            parent = node

    def _is_followed(self, group: int | None) -> bool:
        """Of several groups of layers, each with blocks of its own, the first one that keeps whole prefixes."""
        if self._group is None:
            self._group = group
        return self._group == group

    def _parent(self, event: Stored) -> _Node:
        name = event.salt if event.parent is None else event.parent
        node = self._nodes.get(name)
        if node is None:
            node = self._new(name)
            if event.parent is None:
                node.chain, node.blocks, node.live = self._namespace(event.salt), (), True
        return node

    def _new(self, key: Key | str) -> _Node:
        node = self._nodes[key] = _Node(key)
        return node

    def _define(self, node: _Node, parent: _Node, packed: bytes | None) -> _Node:
        node.parent = parent
        parent.children.add(node)
        if packed is None or parent.dead:
            node.dead = True
        else:
            node.packed = packed
            self._resolve(node)
        return node

    @staticmethod
    def _resolve(node: _Node) -> None:
        """Computes our blocks, of it and of those that waited for it."""
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if node.dead or node.blocks is not None or node.parent is None or node.parent.blocks is None:
                continue
            node.blocks, node.chain, node.tail = _blocks_after(node.parent, node.packed)
            node.packed = b""
            waiting.extend(node.children)

    @staticmethod
    def _agrees(node: _Node, parent: _Node, packed: bytes | None) -> bool:
        if node.dead:
            return True
        if node.parent is not parent or packed is None:
            return False
        if node.blocks is None:
            return node.packed == packed
        return (node.blocks, node.chain, node.tail) == _blocks_after(parent, packed)

    def _disown(self, node: _Node) -> None:
        self.conflicts += 1
        self._lower(node)
        node.dead = True

    def _remove(self, event: Removed) -> None:
        if self._group is not None and event.group != self._group:
            return
        for key in event.keys:
            node = self._nodes.get(key)
            # Blocks from before we listened are removed too.
            if node is None or not node.copies:
                continue
            node.copies -= 1
            if not node.copies:
                self._lower(node)
                self._forget(node)

    def _forget(self, node: _Node) -> None:
        """What isn't held is remembered as long as something that is held comes after it."""
        while not node.copies and not node.children:
            del self._nodes[node.key]
            if node.parent is None:
                return
            parent = node.parent
            parent.children.discard(node)
            node = parent

    def _raise(self, node: _Node) -> None:
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if node.live or node.dead or not node.copies or node.blocks is None:
                continue
            if node.parent is None or not node.parent.live:
                continue
            node.live = True
            for block in node.blocks:
                self._hold(block)
            waiting.extend(node.children)

    def _lower(self, node: _Node) -> None:
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if not node.live:
                continue
            node.live = False
            for block in node.blocks or ():
                self._let_go(block)
            waiting.extend(node.children)

    def _hold(self, block: int) -> None:
        count = self._held.get(block, 0)
        self._held[block] = count + 1
        if not count:
            self._added.add(block) if block not in self._removed else self._removed.remove(block)

    def _let_go(self, block: int) -> None:
        count = self._held[block] - 1
        if count:
            self._held[block] = count
            return
        del self._held[block]
        self._removed.add(block) if block not in self._added else self._added.remove(block)


def _blocks_after(parent: _Node, packed: bytes) -> tuple[tuple[int, ...], int, bytes]:
    """Our blocks that end within these tokens, the last hash, and the tokens that are left."""
    data = parent.tail + packed
    chain = parent.chain
    blocks = []
    whole = len(data) - len(data) % _STEP
    for start in range(0, whole, _STEP):
        chain = child_hash(chain, data[start : start + _STEP])
        blocks.append(chain)
    return tuple(blocks), chain, data[whole:]
