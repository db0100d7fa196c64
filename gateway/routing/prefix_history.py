"""What was sent where: how a router guesses at caches that don't tell it what they hold."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np

from gateway.routing.candidates import Floats, Mask

MAX_BLOCKS = 1 << 20
"""Over all replicas: about 250 MB."""
MAX_REPLICAS = 4096


@dataclass(slots=True, eq=False)
class _Sent:
    number: int
    blocks: "OrderedDict[int, None]" = field(default_factory=OrderedDict)
    """The longest unused first; of those of one prompt, the last."""
    prompts: int = 0


class PrefixHistory:
    """The blocks of the prompts that each replica got. In effect a prefix tree, as a block's hash stands for all before
    it, and what goes is the end of what was longest unused. Bounded: beyond MAX_BLOCKS replicas are cut to equal
    shares of it, and beyond MAX_REPLICAS the one longest unused is forgotten."""

    def __init__(self) -> None:
        self._sent: OrderedDict[str, _Sent] = OrderedDict()
        self._holders: dict[int, int] = {}
        """By block: a bit for each replica's number."""
        self._free: list[int] = []
        self._numbers = 0
        self._blocks = 0

    def __len__(self) -> int:
        """Blocks of all replicas."""
        return self._blocks

    def matched(self, hashes: Sequence[int], replicas: Sequence[str]) -> Floats:
        """Leading blocks that each of them was sent before."""
        depths = np.zeros(self._numbers + 1)
        alive = (1 << self._numbers) - 1
        for depth, block in enumerate(hashes):
            still = alive & self._holders.get(block, 0)
            if still != alive:
                depths[:-1][_bits(alive ^ still, self._numbers)] = depth
                alive = still
            if not alive:
                break
        depths[:-1][_bits(alive, self._numbers)] = len(hashes)
        sent = self._sent
        return depths[[sent[replica].number if replica in sent else -1 for replica in replicas]]

    def prompts(self, replicas: Sequence[str]) -> Floats:
        """How many each of them was sent."""
        sent = self._sent
        return np.array([sent[replica].prompts if replica in sent else 0.0 for replica in replicas])

    def add(self, replica: str, hashes: Sequence[int]) -> int:
        """Returns how many leading blocks it was sent before."""
        sent = self._sent.get(replica) or self._new(replica)
        self._sent.move_to_end(replica)
        bit = 1 << sent.number
        held = next((depth for depth, block in enumerate(hashes) if block not in sent.blocks), len(hashes))
        for block in reversed(hashes):
            if block not in sent.blocks:
                self._holders[block] = self._holders.get(block, 0) | bit
                self._blocks += 1
                sent.blocks[block] = None
            sent.blocks.move_to_end(block)
        sent.prompts += 1
        if self._blocks > MAX_BLOCKS:
            self.trim(MAX_BLOCKS // len(self._sent))
        return held

    def trim(self, max_blocks: int) -> None:
        """Each replica's, down to so many."""
        for sent in self._sent.values():
            self._trim(sent, max_blocks)

    def _new(self, replica: str) -> _Sent:
        if len(self._sent) >= MAX_REPLICAS:
            _, gone = self._sent.popitem(last=False)
            self._trim(gone, 0)
            self._free.append(gone.number)
        if not self._free:
            self._free.append(self._numbers)
            self._numbers += 1
        self._sent[replica] = _Sent(self._free.pop())
        return self._sent[replica]

    def _trim(self, sent: _Sent, max_blocks: int) -> None:
        bit = 1 << sent.number
        for _ in repeat(None, len(sent.blocks) - max(0, max_blocks)):
            block, _ = sent.blocks.popitem(last=False)
            self._blocks -= 1
            holders = self._holders[block] ^ bit
            if holders:
                self._holders[block] = holders
            else:
                del self._holders[block]


def _bits(mask: int, count: int) -> Mask:
    packed = np.frombuffer(mask.to_bytes((count + 7) // 8, "little"), np.uint8)
    return np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)
