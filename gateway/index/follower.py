"""Which epoch of each replica's digest is believed, and which replicas have to be read anew. Pure; reader.py does the
I/O.

Three rules make the index equal to the replicas' caches, or known not to be, whatever Redis loses, repeats or brings
back:

- Only heartbeats give an epoch credit; whatever else names another epoch only takes credit away. A heartbeat that
  differs from what is known is believed once it has changed: an old one that a failover brought back never does.
- Where a replica stands in the index is (epoch, seq), and every heartbeat promises how far the stream goes. Once the
  stream has been read to its end a promise that isn't kept is a loss, also where nothing comes that would show a gap.
- A repair counts only when it reaches what was promised; else the replica itself is asked for a new snapshot.

What changes the index takes several steps where it is long, as a generator: run it to its end before anything else.
"""

from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field

from gateway.index.prefix_index import Applied, PrefixIndex
from replica.protocol.records import Delta, Heartbeat, Snapshot

GAP_WAIT_S = 0.05
"""A replica that has reason to adds a delta and then writes a snapshot: what comes next may be the repair."""
RETRY_S = 0.2
FULL_RETRY_S = 30.0
"""Where the index has no room."""
FORGET_S = 60.0
PAST_EPOCHS = 16


@dataclass(slots=True)
class Repair:
    due: float
    tried: bytes = b""
    """The beginning of a snapshot that wouldn't do."""
    least: int = 0
    """What lies before this seq isn't in the stream: an older snapshot is of no use."""
    full: bool = False
    """The index had no room for it at the last look."""


@dataclass(slots=True)
class _Followed:
    epoch: str
    """Believed; empty while all that is known is that the last one may be over."""
    last: str
    """Believed last, and still, if any is; empty while none ever was."""
    named: str = ""
    """By deltas alone, before the first heartbeat; if they name several, none is."""
    past: deque[str] = field(default_factory=lambda: deque(maxlen=PAST_EPOCHS))
    """Believed before that one: records that name them are old and mean nothing."""
    candidate: tuple[str, int] | None = None
    """Epoch and count of a heartbeat that isn't believed yet."""
    promised: int = 0
    beats: int = 0
    doubt: str = "gap"
    """What to call a loss, if one shows."""
    doubt_to: int = 0
    """It is over when a heartbeat of this count, surely written after what raised it, has kept its promise."""
    repair: Repair | None = None
    gone_at: float | None = None


class Follower:
    def __init__(self, index: PrefixIndex, resync: Callable[[str], None]) -> None:
        """`resync` is told the reason of each repair."""
        self._index = index
        self._resync = resync
        self._followed: dict[str, _Followed] = {}

    def __len__(self) -> int:
        return len(self._followed)

    def epoch(self, replica: str) -> str:
        """Believed; empty for none."""
        followed = self._followed.get(replica)
        return "" if followed is None else followed.epoch

    def connected(self) -> None:
        """Another connection, perhaps to another Redis: two heartbeats that differ prove nothing across it."""
        for followed in self._followed.values():
            followed.candidate = None
        self.doubt("reconnect")

    def doubt(self, reason: str) -> None:
        """Something has happened to the stream: if deltas turn out to be lost, it's for this."""
        for followed in self._followed.values():
            followed.doubt = reason
            followed.doubt_to = followed.beats + 2

    def heard(self, heartbeats: Mapping[str, Heartbeat], now: float) -> None:
        """The heartbeats of live replicas. All other replicas are gone."""
        for replica, heartbeat in heartbeats.items():
            self._hear(replica, heartbeat, now)
        for replica in self._followed.keys() - heartbeats.keys():
            self._miss(replica, now)

    def _hear(self, replica: str, heartbeat: Heartbeat, now: float) -> None:
        followed = self._followed.get(replica)
        if followed is None:
            followed = self._followed[replica] = _Followed("", "", heartbeat.epoch)
        if not followed.last and followed.named == heartbeat.epoch:
            followed.epoch = followed.last = heartbeat.epoch
            self._start_repair(followed, "join", now)
        elif followed.epoch != heartbeat.epoch:
            self._hear_of_another(replica, followed, heartbeat, now)
        elif followed.gone_at is not None:
            self._start_repair(followed, "join", now)
        followed.gone_at = None
        if followed.epoch == heartbeat.epoch:
            followed.candidate = None
            followed.promised = heartbeat.seq
            followed.beats = heartbeat.beats

    def _hear_of_another(self, replica: str, followed: _Followed, heartbeat: Heartbeat, now: float) -> None:
        before, candidate = followed.candidate, (heartbeat.epoch, heartbeat.beats)
        if heartbeat.epoch not in followed.past:
            self._void(replica, followed)
        followed.candidate = candidate
        if before is not None and before[0] == heartbeat.epoch and before != candidate:
            self._void(replica, followed)
            if followed.last not in ("", heartbeat.epoch):
                followed.past.append(followed.last)
            followed.epoch = followed.last = heartbeat.epoch
            self._start_repair(followed, "epoch", now)

    def _miss(self, replica: str, now: float) -> None:
        """Its last epoch is remembered for a while: a failover may bring back what came before that."""
        followed = self._followed[replica]
        if followed.gone_at is None:
            followed.gone_at = now
            followed.repair = followed.candidate = None
            self._index.drop(replica)
        elif now > followed.gone_at + FORGET_S:
            del self._followed[replica]

    def forget(self, replica: str) -> None:
        """Its digest isn't to be used."""
        self._index.drop(replica)
        self._followed.pop(replica, None)

    def take(self, delta: Delta, now: float) -> Generator[None, None, Applied | None]:
        """A delta in the order of the stream; what became of it, or None where it isn't wanted."""
        followed = self._followed.get(delta.replica)
        if followed is None:
            self._followed[delta.replica] = _Followed("", "", delta.epoch, gone_at=now)
            return None
        if delta.epoch != followed.epoch:
            self._name_another(delta.replica, followed, delta.epoch)
            return None
        if followed.gone_at is not None:
            return None
        if followed.repair is not None and delta.seq != 1:
            return None
        applied = yield from self._index.apply_in_steps(delta)
        if applied is Applied.OK:
            # NOTE: a first delta needs no snapshot.
            followed.repair = None
        elif applied is not Applied.STALE:
            self._lose(delta.replica, followed, applied.value, delta.seq - (applied is Applied.GAP), now)
        return applied

    def replay(self, delta: Delta) -> Generator[None, None, Applied | None]:
        """A delta behind the snapshot that a repair has loaded."""
        followed = self._followed[delta.replica]
        if delta.epoch != followed.epoch:
            self._name_another(delta.replica, followed, delta.epoch)
        elif self._index.position(delta.replica) is not None:
            return (yield from self._index.apply_in_steps(delta))
        return None

    def check_promises(self, now: float) -> None:
        """Call it when the stream was read to its end since the heartbeats were."""
        for replica, followed in self._followed.items():
            if followed.repair is None and followed.epoch and followed.gone_at is None:
                if not self._keeps_promise(replica, followed):
                    self._lose(replica, followed, "gap", followed.promised, now)
                elif followed.beats >= followed.doubt_to:
                    followed.doubt = "gap"

    def due(self, now: float) -> list[str]:
        return [r for r, f in self._followed.items() if f.repair is not None and f.repair.due <= now]

    def next_due(self) -> float:
        return min((f.repair.due for f in self._followed.values() if f.repair is not None), default=float("inf"))

    def tried(self, replica: str) -> bytes:
        repair = self._followed[replica].repair
        return b"" if repair is None else repair.tried

    def may_do(self, replica: str, seq: int, stream_is_whole: bool) -> bool:
        """Whether a snapshot of this seq may be enough, given whether the stream reaches back to it."""
        followed = self._followed[replica]
        least = 0 if followed.repair is None else followed.repair.least
        return seq >= least and (stream_is_whole or seq >= followed.promised)

    def load(self, replica: str, snapshot: Snapshot) -> Generator[None, None, Applied | None]:
        """None where it is of another epoch than the one believed: then none is, until heartbeats say which."""
        followed = self._followed[replica]
        if snapshot.epoch != followed.epoch:
            self._name_another(replica, followed, snapshot.epoch)
            return None
        applied = yield from self._index.load_in_steps(replica, snapshot)
        if applied is not Applied.OK and followed.repair is not None:
            followed.repair.full = applied is Applied.FULL
            self._resync(applied.value)
        return applied

    def repaired(self, replica: str) -> bool:
        """Whether the repair, now that all was done, has reached what was promised."""
        followed = self._followed[replica]
        if followed.epoch and self._keeps_promise(replica, followed):
            followed.repair = None
            return True
        return False

    def retry(self, replica: str, tried: bytes, now: float) -> None:
        """The repair has failed with this snapshot, named by its beginning."""
        repair = self._followed[replica].repair
        self._index.drop(replica)
        if repair is not None:
            # A snapshot that there was no room for is as good as any.
            repair.tried = b"" if repair.full else tried
            repair.due = now + (FULL_RETRY_S if repair.full else RETRY_S)
            repair.full = False

    def _keeps_promise(self, replica: str, followed: _Followed) -> bool:
        position = self._index.position(replica)
        return position is not None and position[1] >= followed.promised

    def _name_another(self, replica: str, followed: _Followed, epoch: str) -> None:
        """A record that is no heartbeat names another epoch than the one believed."""
        if epoch != followed.named:
            followed.named = ""
        if epoch in followed.past:
            return
        candidate = followed.candidate
        self._void(replica, followed)
        if candidate is not None and candidate[0] == epoch:
            followed.candidate = candidate

    def _void(self, replica: str, followed: _Followed) -> None:
        self._index.drop(replica)
        followed.epoch = ""
        followed.candidate = followed.repair = None

    def _lose(self, replica: str, followed: _Followed, reason: str, lost: int, now: float) -> None:
        """Deltas up to seq `lost` have not come."""
        self._index.drop(replica)
        if reason == "gap":
            # NOTE: without a doubt the stream was read to here, and they aren't in it.
            reason, lost = (reason, lost) if followed.doubt == "gap" else (followed.doubt, 0)
        followed.doubt = "gap"
        wait_s = FULL_RETRY_S if reason == Applied.FULL else GAP_WAIT_S
        followed.repair = Repair(due=now + wait_s, least=lost)
        self._resync(reason)

    def _start_repair(self, followed: _Followed, reason: str, now: float) -> None:
        followed.repair = Repair(due=now)
        followed.doubt = "gap"
        self._resync(reason)
