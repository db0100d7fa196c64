"""What lies in Redis -> records that may be believed, or a RecordError with the reason.

With a fleet key, whoever can write to Redis but hasn't got the key can't speak for a replica: not forge a record, not
change one, not move one to another replica, kind or fleet. They can still play an old record again, and that is met so:

- A heartbeat of an epoch that is over, or older than one already seen, is refused here, so a gateway that has seen a
  replica isn't sent back to its former address or state. Which of two epochs is over is told by the replica's clock
  and, since that may be set back, by persistence: who goes on beating is believed in the end. Not covered: a gateway
  that has just started, and several old heartbeats played in a row, until the live replica's next one.
- An old delta has a sequence number that the index is past, or an epoch that the heartbeat doesn't name. An old
  snapshot is of another epoch, or of a sequence number below the heartbeat's: it costs a repair.
- Old intents of a gateway that was heard lately have numbers that are used up. Those of one that is long gone count
  until the replica's next heartbeat: there is less credit, or a longer queue, for half a second.

And they can always delete and withhold records: then there is less credit, or a replica is thought to be gone.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.addresses import AddressList
from replica.protocol.intents import Intents
from replica.protocol.records import (
    REPLICAS_MAX,
    Delta,
    Heartbeat,
    Keys,
    Snapshot,
    StateChange,
    check_replica_id,
    check_snapshot_size,
    decode_entry,
)
from replica.protocol.shape import RecordError
from replica.protocol.signing import Signer

EPOCHS_REMEMBERED = 16
PERSISTENT_BEATS = 3
"""A live replica takes a second for them."""


@dataclass(slots=True)
class _Newest:
    """Of a replica's heartbeats."""

    epoch: str
    beats: int
    past: deque[str] = field(default_factory=lambda: deque(maxlen=EPOCHS_REMEMBERED))
    """Epochs before this one."""
    returning: tuple[str, int, int] = ("", 0, 0)
    """A past epoch that beats again: its last heartbeat, and how many of them there were."""


class RecordsGate:
    """All methods raise RecordError."""

    def __init__(self, keys: Keys, signer: Signer, addresses: AddressList) -> None:
        self._keys = keys
        self._signer = signer
        self._addresses = addresses
        self._newest: OrderedDict[str, _Newest] = OrderedDict()

    def entry(self, fields: Mapping[bytes, bytes]) -> Delta | StateChange:
        """One of the replicas' stream."""
        self._signer.check_entry(self._keys.stream, fields)
        return decode_entry(fields)

    def intents(self, fields: Mapping[bytes, bytes]) -> Intents:
        """One of the gateways' stream."""
        self._signer.check_entry(self._keys.intents, fields)
        return Intents.decode(fields)

    def snapshot(self, replica: str, head: bytes, packed: bytes) -> Snapshot:
        """In two parts, as in `split_snapshot`. Reads every byte of them only for the signature."""
        check_snapshot_size(head, len(head) + len(packed))
        return Snapshot.decode(self._signer.unseal(self._keys.snapshot(replica), head, packed), packed)

    def heartbeat(self, replica: str, value: bytes) -> Heartbeat:
        check_replica_id(replica)
        heartbeat = Heartbeat.decode(self._signer.unseal(self._keys.heartbeat(replica), value))
        if heartbeat.replica != replica:
            raise RecordError(f"heartbeat of {heartbeat.replica!r} under another replica's key", "id")
        self._addresses.check(heartbeat.url)
        self._check_newer(heartbeat)
        return heartbeat

    def _check_newer(self, heartbeat: Heartbeat) -> None:
        newest = self._newest.get(heartbeat.replica)
        if newest is None:
            self._newest[heartbeat.replica] = _Newest(heartbeat.epoch, heartbeat.beats)
            if len(self._newest) > REPLICAS_MAX:
                self._newest.popitem(last=False)
            return
        if heartbeat.epoch == newest.epoch:
            if heartbeat.beats < newest.beats:
                raise RecordError("heartbeat older than the last one", "replay")
            if heartbeat.beats > newest.beats:
                newest.returning = ("", 0, 0)
        elif heartbeat.epoch in newest.past and heartbeat.beats <= newest.beats and not _persists(newest, heartbeat):
            raise RecordError("heartbeat of an epoch that is over", "replay")
        else:
            newest.past.append(newest.epoch)
            newest.epoch, newest.returning = heartbeat.epoch, ("", 0, 0)
        newest.beats = heartbeat.beats
        self._newest.move_to_end(heartbeat.replica)


def _persists(newest: _Newest, heartbeat: Heartbeat) -> bool:
    """Whether a past epoch beats on and on, and the newest one no more."""
    epoch, beats, count = newest.returning
    if epoch != heartbeat.epoch:
        count = 0
    if count == 0 or heartbeat.beats > beats:
        newest.returning = (heartbeat.epoch, heartbeat.beats, count + 1)
    return newest.returning[2] >= PERSISTENT_BEATS
