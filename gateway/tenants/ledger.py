"""What the workers of one gateway tell each other of what keys and tenants use, so that a limit is that of all. Pure.

A worker tells totals since it began, and not what has been added: whatever gets lost, the next word makes good. What
others have spent is taken from the own buckets, into debt if need be, so in the long run nobody gets more than one
bucket gives. A worker that comes anew is told by the others how full their buckets are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.tenants.bucket import Bucket
from gateway.tenants.caller import Limits
from gateway.tenants.meter import Account, Meter

BEAT_S = 0.5
"""A worker says at least so often that it is there."""
SILENT_S = 3.0
"""From then on its running requests don't count: it has died, or stands still."""
ENTRIES_MAX = 200
"""Of a datagram: below 64 KiB."""


@dataclass(frozen=True, slots=True)
class Word:
    """A datagram, and the names in it."""

    data: bytes
    names: tuple[str, ...]


@dataclass(slots=True)
class _Peer:
    """Another worker, as long as it is the same process."""

    process: str
    heard_at: float = 0.0
    is_silent: bool = False
    spent: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By name: requests and tokens that it has told."""
    running: dict[str, int] = field(default_factory=dict)


class Ledger:
    def __init__(self, meter: Meter, number: int, process: str) -> None:
        """`meter`: a shared one; `number`: of this worker; `process`: a random name that no other process has."""
        self._meter = meter
        self._number = number
        self._process = process
        self._peers: dict[int, _Peer] = {}
        self._told_at = float("-inf")

    def to_tell(self, now: float) -> list[Word]:
        """What is new; or only that this worker is there, if it hasn't said so for a while."""
        changed = self._meter.changed
        assert changed is not None
        names = sorted(changed)
        changed.clear()
        if not names and now < self._told_at + BEAT_S:
            return []
        self._told_at = now
        return [self._word(names[at : at + ENTRIES_MAX], now) for at in range(0, max(1, len(names)), ENTRIES_MAX)]

    def tell_again(self, word: Word) -> None:
        """Somebody had no room for it."""
        assert self._meter.changed is not None
        self._meter.changed.update(word.names)

    def hear(self, data: bytes, now: float) -> None:
        """Another worker's word."""
        number, process, entries = orjson.loads(data)
        peer = self._peers.get(number)
        if peer is None or peer.process != process:
            if peer is not None:
                self._silence(peer)
            peer = self._peers[number] = _Peer(process)
            assert self._meter.changed is not None
            self._meter.changed.update(self._meter.in_use(now))
        if peer.is_silent:
            peer.is_silent = False
            self._add_running(peer, 1)
        peer.heard_at = now
        for entry in entries:
            self._take(peer, entry, now)

    def expire(self, now: float) -> None:
        for peer in self._peers.values():
            if now > peer.heard_at + SILENT_S:
                self._silence(peer)

    def _word(self, names: Sequence[str], now: float) -> Word:
        entries = []
        for name in names:
            account = self._meter.known(name)
            if account is not None:
                entries.append(_entry(name, account, now))
                account.told = True
        return Word(orjson.dumps([self._number, self._process, entries]), tuple(names))

    def _take(self, peer: _Peer, entry: Any, now: float) -> None:
        name, limits, is_first, requests, tokens, running, levels = entry
        account = self._meter.open(name, Limits(*limits), now)
        before = (0, 0) if is_first else peer.spent.get(name)
        if before is None:
            # It has been in use for longer than we have heard of it: the sender's buckets tell what is left.
            _lower(account.requests, levels[0], now)
            _lower(account.tokens, levels[1], now)
        else:
            _spend(account.requests, requests - before[0], now)
            _spend(account.tokens, tokens - before[1], now)
        account.elsewhere += running - peer.running.get(name, 0)
        peer.spent[name], peer.running[name] = (requests, tokens), running

    def _silence(self, peer: _Peer) -> None:
        if not peer.is_silent:
            peer.is_silent = True
            self._add_running(peer, -1)

    def _add_running(self, peer: _Peer, sign: int) -> None:
        for name, running in peer.running.items():
            account = self._meter.known(name)
            if account is not None:
                account.elsewhere += sign * running


def _entry(name: str, account: Account, now: float) -> list[Any]:
    limits = account.limits
    return [
        name,
        [limits.requests_per_minute, limits.tokens_per_minute, limits.concurrent_requests],
        not account.told,
        account.spent_requests,
        account.spent_tokens,
        account.running,
        [None if bucket is None else bucket.level(now) for bucket in (account.requests, account.tokens)],
    ]


def _spend(bucket: Bucket | None, cost: int, now: float) -> None:
    if bucket is not None and cost:
        bucket.take(cost, now)


def _lower(bucket: Bucket | None, level: float | None, now: float) -> None:
    if bucket is not None and level is not None and level < bucket.level(now):
        bucket.take(bucket.level(now) - level, now)
