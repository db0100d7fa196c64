"""An engine's KV events over ZMQ: in order, without gaps, or known to be neither.

A batch comes as `(topic, sequence number, payload)`. Any doubt about what came before it (a gap, a connection made
anew, a lull after which the last batch may have been lost) is put to the engine's replay socket: it gives all batches
from a number on that its buffer still has. If that begins with the batch we saw last, nothing but what follows it was
missed. If not, the engine is another one or its buffer is too short: then nothing counts any more that was known, and
the buffer is read from its beginning. Blocks stored before that beginning stay unknown, and with them all that follow.
"""

import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import xxhash
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from adopt.events import EventError, decode_batch
from adopt.mirror import Changes, Mirror

log = logging.getLogger(__name__)

QUEUE_BATCHES = 100_000
"""As many as engines keep for a slow reader."""

LULL_S = 2.0
"""After so long without a batch, once, the replay socket is asked for any that were lost on the way."""

AWAY_S = 2.0
"""A connection that isn't back by then: what was known doesn't count any more."""

_END = (-1).to_bytes(8, "big", signed=True)
_SEQ_BYTES = 8

_Batch = tuple[int, bytes]


class ReplayFailed(Exception):
    """The replay socket doesn't answer, or with something else."""


class EventStream:
    """`changed` is told whenever the mirror has changed."""

    def __init__(
        self,
        endpoint: str,
        replay: str | None,
        topic: str,
        mirror: Mirror,
        changed: Callable[[Changes], None],
        replay_timeout_s: float = 5.0,
        lull_s: float = LULL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = endpoint
        self._replay = replay
        self._topic = topic
        self._mirror = mirror
        self._changed = changed
        self._replay_timeout_s = replay_timeout_s
        self._lull_s = lull_s
        self._clock = clock
        self._context = zmq.asyncio.Context()
        self._next: int | None = None
        """The number of the batch that comes next; None: any may."""
        self._last: _Batch | None = None
        """The batch applied last, by number and hash of its payload."""
        self._away_since: float | None = None
        self._doubt = "join"
        """Why it isn't certain that the next batch follows the last; "" if it is."""
        self._asked = False
        """The replay socket was asked since the last batch."""
        self._complained: set[str] = set()
        self.connected = False
        self.tells_salts = True
        self.losses: dict[str, int] = {}
        """How often what was known had to be dropped, by reason."""

    @property
    def position(self) -> int | None:
        """The number of the batch applied last; None where nothing is known."""
        return None if self._last is None else self._last[0]

    def forget(self, reason: str) -> None:
        """What was known doesn't count any more, though nothing of the stream was missed."""
        self._forget(reason)
        self._tell()

    async def run(self) -> None:
        """Until cancelled."""
        subscriber = self._context.socket(zmq.SUB)
        subscriber.rcvhwm = QUEUE_BATCHES
        subscriber.subscribe(self._topic.encode())
        monitor = subscriber.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        poller = zmq.asyncio.Poller()
        poller.register(subscriber, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        try:
            # Engines bind an endpoint with a wildcard in it and connect to any other: we do the opposite.
            subscriber.bind(self._endpoint) if "*" in self._endpoint else subscriber.connect(self._endpoint)
            while True:
                await self._step(subscriber, monitor, poller)
        finally:
            subscriber.disable_monitor()
            monitor.close(linger=0)
            subscriber.close(linger=0)
            self._context.destroy(linger=0)

    async def _step(
        self, subscriber: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket, poller: zmq.asyncio.Poller
    ) -> None:
        ready = dict(await poller.poll(self._patience_ms()))
        batch = None
        if subscriber in ready:
            batch = _batch_of(await subscriber.recv_multipart())
        # A connection is told of before its first batch can come, so what is read after that batch is of use for it.
        await self._read_monitor(monitor)
        if self._away_since is not None and self._clock() - self._away_since > AWAY_S:
            self._away_since = None
            self._lose("away")
        if self._doubt and self.connected:
            batch = await self._resolve(subscriber, batch)
        if batch is not None:
            await self._take(*batch)
        elif not ready and self._replay is not None and self.connected and not self._asked:
            self._asked = True
            await self._catch_up_or_lose("lull")
        self._tell()

    def _patience_ms(self) -> int | None:
        if self._away_since is not None:
            return int(AWAY_S * 1000)
        return int(self._lull_s * 1000) if self._replay is not None and not self._asked else None

    async def _read_monitor(self, monitor: zmq.asyncio.Socket) -> None:
        while await monitor.poll(0):
            event = parse_monitor_message(await monitor.recv_multipart())["event"]
            self.connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            self._doubt = self._doubt or "reconnect"
            self._away_since = None if self.connected else self._clock()

    async def _resolve(self, subscriber: zmq.asyncio.Socket, batch: _Batch | None) -> _Batch | None:
        """Settles a doubt. The batch just read, if it still counts."""
        reason, self._doubt = self._doubt, ""
        if self._replay is None and reason == "join":
            return batch
        # What waits to be read may be the engine's that has gone. What isn't is in the replay that is asked for next.
        while await subscriber.poll(0):
            await subscriber.recv_multipart()
        if self._replay is not None:
            await self._catch_up_or_lose(reason)
        else:
            self._lose(reason)
        return None

    async def _take(self, seq: int, payload: bytes) -> None:
        if self._doubt:
            # Not connected: the last words of an engine that has gone.
            return
        if self._next is not None and seq != self._next:
            if self._replay is None:
                self._lose("gap" if seq > self._next else "restart")
            elif seq > self._next:
                await self._catch_up_or_lose("gap")
        if self._next is None or seq == self._next:
            self._apply(seq, payload)

    def _follow(self, seq: int, payload: bytes) -> None:
        """A batch that was replayed: one that isn't there between two others is lost for ever."""
        if self._next is not None and seq > self._next:
            self._forget("gap")
        self._apply(seq, payload)

    def _apply(self, seq: int, payload: bytes) -> None:
        self._next, self._last = seq + 1, (seq, xxhash.xxh3_128_digest(payload))
        self._asked = False
        try:
            batch = decode_batch(payload)
        except EventError as error:
            self._complain(f"batch {seq} can't be read: {error}")
            self._forget("unreadable")
            return
        if batch.rank:
            self._complain(f"events of data-parallel rank {batch.rank}: adopt each rank's own server and event port")
            return
        self.tells_salts = self.tells_salts and batch.tells_salts
        conflicts = self._mirror.conflicts
        self._mirror.apply(batch.events)
        if self._mirror.conflicts > conflicts:
            self._complain(
                "the engine gives different blocks one name, so they get no credit; SGLang did before sglang#13488"
            )

    async def _catch_up_or_lose(self, reason: str) -> None:
        try:
            if self._last is not None:
                if await self._catch_up(self._last):
                    return
                self._lose(reason)
            await self._read_from_the_beginning()
        except ReplayFailed as error:
            self._complain(f"{self._replay}: {error}")
            if reason != "lull":
                self._lose(reason)

    async def _catch_up(self, last: _Batch) -> bool:
        """Whether the engine is still the one that sent this batch, and remembers it."""
        first = True
        async with aclosing(self._replayed(last[0])) as batches:
            async for seq, payload in batches:
                if first and (seq, xxhash.xxh3_128_digest(payload)) != last:
                    return False
                if not first:
                    self._follow(seq, payload)
                first = False
        return not first

    async def _read_from_the_beginning(self) -> None:
        self._next = 0
        first = True
        async with aclosing(self._replayed(0)) as batches:
            async for seq, payload in batches:
                if first and seq:
                    log.info("the engine's replay buffer begins with batch %d: older blocks stay unknown", seq)
                    self._next = seq
                self._follow(seq, payload)
                first = False

    async def _replayed(self, start: int) -> AsyncGenerator[_Batch, None]:
        """Raises ReplayFailed."""
        assert self._replay is not None
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        try:
            socket.connect(self._replay)
            await socket.send_multipart([b"", start.to_bytes(_SEQ_BYTES, "big")])
            while True:
                if not await socket.poll(int(self._replay_timeout_s * 1000)):
                    raise ReplayFailed(f"no answer within {self._replay_timeout_s:g} s")
                frames = await socket.recv_multipart()
                if len(frames) >= 2 and frames[-2] == _END:
                    return
                batch = _batch_of(frames)
                if batch is None:
                    raise ReplayFailed("it doesn't answer with batches")
                yield batch
        finally:
            socket.close()

    def _lose(self, reason: str) -> None:
        """What was known may be wrong, and what comes next may follow anything."""
        self._next = self._last = None
        self._asked = False
        self._forget(reason)

    def _forget(self, reason: str) -> None:
        if self._mirror.num_nodes:
            log.warning("the engine's blocks are unknown from here on (%s): a new epoch begins", reason)
        self.losses[reason] = self.losses.get(reason, 0) + 1
        self._mirror.clear()

    def _tell(self) -> None:
        changes = self._mirror.take_changes()
        if changes.cleared or changes.added or changes.removed:
            self._changed(changes)

    def _complain(self, message: str) -> None:
        """Each kind once."""
        kind = message.partition(":")[0][:20]
        if kind not in self._complained:
            self._complained.add(kind)
            log.warning("KV events: %s", message)


def _batch_of(frames: list[bytes]) -> _Batch | None:
    """Number and payload are last, whatever stands before them: vLLM's replies to a replay have the topic, SGLang's
    haven't."""
    if len(frames) < 2 or len(frames[-2]) != _SEQ_BYTES:
        return None
    return int.from_bytes(frames[-2], "big"), frames[-1]
