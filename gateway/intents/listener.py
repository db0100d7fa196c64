"""What other gateways tell, from wherever their stream ends now. Nothing of it is ever read again: what is lost costs
no more than that it wasn't heard. Pure, but for the log; index/reader.py does the I/O."""

import logging
from collections.abc import Callable, Mapping

from redis.exceptions import RedisError

from replica.protocol.intents import Intents
from replica.protocol.redis_link import Complaints, explain
from replica.protocol.shape import RecordError

log = logging.getLogger(__name__)

LAG_S = 1.0
"""Of entries that may have waited for longer nobody knows how old they are; heartbeats say it better."""

_Id = tuple[int, int]


class Listener:
    def __init__(
        self,
        decode: Callable[[Mapping[bytes, bytes]], Intents],
        heard: Callable[[Intents, float], object],
        bad_record: Callable[[str], None],
    ) -> None:
        """`heard` is given the time as well, `bad_record` the reason."""
        self._decode = decode
        self._heard = heard
        self._bad_record = bad_record
        self._complaints = Complaints()
        self._drained_at = float("-inf")
        """When the stream was last read to its end."""
        self.after: _Id | None = None
        """Read on from there; None where the stream can't be read."""

    def connected(self) -> None:
        self.after = None

    def look(self, end: _Id | RedisError, now: float) -> None:
        """Where the stream ends, as was just seen, or why nobody can tell. Call it now and then."""
        if isinstance(end, RedisError):
            self.after = None
            self._complain(f"can't hear where other gateways send requests: {explain(end)}", now)
        elif self.after is None or end < self.after:
            # Begun anew: with ids below ours nothing new would ever be read.
            self.after = end
            self._drained_at = now

    def drained(self, now: float) -> None:
        """The stream was read to its end."""
        self._drained_at = now

    def take(self, entry: tuple[_Id, Mapping[bytes, bytes]], now: float) -> None:
        self.after, fields = entry
        if now >= self._drained_at + LAG_S:
            return
        try:
            intents = self._decode(fields)
        except RecordError as error:
            self._bad_record(error.reason)
            self._complain(f"bad record in the gateways' stream: {error}", now)
            return
        self._heard(intents, now)

    def _complain(self, what: str, now: float) -> None:
        if self._complaints.is_new(what[:60], now):
            log.warning("%s", what)
