"""Token ids by segment, least recently used first out, bounded by bytes. Safe to share between threads."""

import sys
import threading
from collections import OrderedDict

from gateway.prompts.token_ids import TokenIds

ENTRY_OVERHEAD = 300
"""Bytes of the memo's own book-keeping for a segment."""


class SegmentMemo:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[str, TokenIds] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, segment: str) -> TokenIds | None:
        with self._lock:
            ids = self._entries.get(segment)
            if ids is not None:
                self._entries.move_to_end(segment)
            return ids

    def put(self, segment: str, ids: TokenIds) -> None:
        size = _entry_bytes(segment, ids)
        if size > self._max_bytes:
            return
        with self._lock:
            if segment in self._entries:
                return
            self._entries[segment] = ids
            self._bytes += size
            while self._bytes > self._max_bytes:
                self._bytes -= _entry_bytes(*self._entries.popitem(last=False))


def _entry_bytes(segment: str, ids: TokenIds) -> int:
    return sys.getsizeof(segment) + len(ids.packed) + len(ids.json) + ENTRY_OVERHEAD
