"""The index as sets: the oracle of `PrefixIndex`."""

from collections.abc import Sequence

from gateway.index.prefix_index import Applied, Match
from replica.protocol.records import Delta, Snapshot, xor_root


class NaiveIndex:
    def __init__(self) -> None:
        self.held: dict[str, set[int]] = {}
        self.positions: dict[str, tuple[str, int]] = {}
        self.expected: dict[str, set[int]] = {}

    def apply(self, delta: Delta) -> Applied:
        position = self.positions.get(delta.replica)
        if position is None or position[0] != delta.epoch:
            self.drop(delta.replica)
            if delta.seq != 1:
                return Applied.EPOCH
            self.load(delta.replica, Snapshot(delta.epoch, 0, "0-0", ()))
        elif delta.seq <= position[1]:
            return Applied.STALE
        elif delta.seq > position[1] + 1:
            self.drop(delta.replica)
            return Applied.GAP
        held = self.held[delta.replica]
        held -= set(delta.removed)
        self.expected[delta.replica] -= set(delta.removed)
        held |= set(delta.added)
        self.positions[delta.replica] = (delta.epoch, delta.seq)
        if (len(held), xor_root(held)) != (delta.count, delta.root):
            self.drop(delta.replica)
            return Applied.ROOT
        return Applied.OK

    def load(self, replica: str, snapshot: Snapshot) -> None:
        self.held[replica] = set(snapshot.hashes)
        self.expected[replica] = set()
        self.positions[replica] = (snapshot.epoch, snapshot.seq)

    def drop(self, replica: str) -> None:
        for known in (self.held, self.positions, self.expected):
            known.pop(replica, None)

    def expect(self, replica: str, hashes: Sequence[int]) -> None:
        if replica in self.held:
            self.expected[replica] |= set(hashes)

    def match(self, hashes: Sequence[int]) -> dict[str, Match]:
        matches = {
            replica: Match(_prefix(hashes, held), _prefix(hashes, held | self.expected[replica]))
            for replica, held in self.held.items()
        }
        return {replica: match for replica, match in matches.items() if match.expected}


def _prefix(hashes: Sequence[int], known: set[int]) -> int:
    return next((depth for depth, block in enumerate(hashes) if block not in known), len(hashes))
