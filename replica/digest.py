"""A replica's digest: what it has told, and what it will tell next. Pure; publisher.py does the I/O.

Changes that aren't sent yet are kept net, so they never exceed the cache in size: nothing overflows however long Redis
is away. After any doubt about what Redis has got a snapshot says all.
"""

import secrets
from dataclasses import dataclass, field

from replica.protocol.records import Delta, Snapshot, xor_root

MAX_DELTA_BLOCKS = 8192
"""64 KiB. More change at once only while Redis is away, and then a snapshot is due anyway."""


def new_epoch() -> str:
    return secrets.token_hex(8)


@dataclass(slots=True)
class Digest:
    replica: str
    epoch: str = field(default_factory=new_epoch)
    seq: int = 0
    root: int = 0
    held: set[int] = field(default_factory=set)
    """As of `seq`."""
    stream_id: str = "0-0"
    """Of the last stream entry known to hold everything up to `seq`."""
    snapshot_due: bool = True
    max_delta_blocks: int = MAX_DELTA_BLOCKS
    _added: set[int] = field(default_factory=set)
    _removed: set[int] = field(default_factory=set)
    _changes_since_snapshot: int = 0

    def change(self, added: tuple[int, ...], removed: tuple[int, ...]) -> None:
        for block in removed:
            if block in self._added:
                self._added.remove(block)
            else:
                self._removed.add(block)
        for block in added:
            if block in self._removed:
                self._removed.remove(block)
            else:
                self._added.add(block)

    def restart(self) -> None:
        """The cache is empty and begins anew."""
        self.epoch = new_epoch()
        self.seq = self.root = self._changes_since_snapshot = 0
        self.held.clear()
        self._added.clear()
        self._removed.clear()
        self.snapshot_due = True

    @property
    def has_changes(self) -> bool:
        return bool(self._added or self._removed)

    def next_delta(self) -> Delta:
        """All changes so far as one delta, which counts as told from here on; perhaps an empty one, which lets readers
        check where they stand. Too many changes for an entry of the stream are left out together with their seq: then
        a snapshot is due."""
        added, removed = tuple(self._added), tuple(self._removed)
        self._added.clear()
        self._removed.clear()
        self.held.difference_update(removed)
        self.held.update(added)
        self.root ^= xor_root(added) ^ xor_root(removed)
        self.seq += 1
        self._changes_since_snapshot += len(added) + len(removed)
        if len(added) + len(removed) > self.max_delta_blocks:
            added = removed = ()
            self.seq += 1
            self.snapshot_due = True
        if self._changes_since_snapshot > max(1024, len(self.held) // 2):
            self.snapshot_due = True
        return Delta(self.replica, self.epoch, self.seq, added, removed, len(self.held), self.root)

    def snapshot(self) -> Snapshot:
        self._changes_since_snapshot = 0
        self.snapshot_due = False
        return Snapshot(self.epoch, self.seq, self.stream_id, tuple(self.held), (len(self.held), self.root))
