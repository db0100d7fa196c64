"""The front desk in an event loop: whoever is held sleeps until its turn, its deadline or its client's end."""

import asyncio
from collections.abc import Callable
from math import inf

from gateway.errors import DeadlinePassed, GatewayError, NoReplica
from gateway.hold.desk import FrontDesk
from gateway.hold.guest import Guest
from gateway.metrics import Metrics

LOOK_S = 0.25
"""Some changes come without any event, as when a replica's back-off ends."""


class Reception:
    def __init__(
        self, desk: FrontDesk, metrics: Metrics, clock: Callable[[], float], queue_s: float, longest_s: float
    ) -> None:
        """`queue_s`: how long a request waits where no replica may take it; `longest_s`: how long it is held."""
        self.desk = desk
        self._metrics = metrics
        self._clock = clock
        self.queue_s = queue_s
        self.longest_s = longest_s
        self._sleeping: dict[Guest, asyncio.Future[None]] = {}
        self._timer: asyncio.Handle | None = None
        self._due = inf
        """When it is up, on the loop's clock; uvloop's handles don't all tell."""
        self._next_count_at = -inf
        """Of those that are stranded: it looks at everybody."""

    def arrive(self, guest: Guest, now: float) -> bool:
        """See FrontDesk.arrive. Raises QueueFull or DeadlineOutOfReach."""
        try:
            routed = self.desk.arrive(guest, now)
        except GatewayError as error:
            self._metrics.refused(error)
            raise
        if guest.target:
            self._sleeping[guest] = asyncio.get_running_loop().create_future()
            self.wake()
        return routed

    async def turn(self, guest: Guest) -> None:
        """Of one that is held. Afterwards it has a decision, whose lease is to be taken at once.

        Raises DeadlinePassed or NoReplica.
        """
        begin = self._clock()
        end = min(guest.terms.deadline, begin + self.longest_s)
        try:
            async with asyncio.timeout(max(0.0, end - begin)):
                await self._sleeping[guest]
        except TimeoutError as error:
            passed = DeadlinePassed(f"no replica had room for it in time; it was held for {end - begin:.3f} s")
            self._metrics.refused(passed)
            raise passed from error
        except NoReplica as error:
            self._metrics.refused(error)
            raise
        finally:
            del self._sleeping[guest]
            if guest.is_held or guest.considered is None:
                self.desk.leave(guest, self._clock())
            self._metrics.left(guest.held_s)
            self.wake()

    def leave(self, guest: Guest) -> None:
        """See FrontDesk.leave."""
        if guest.target or guest.open_tokens:
            self.desk.leave(guest, self._clock())
        if self._sleeping:
            self._plan(0.0)

    def wake(self) -> None:
        """Something has changed: somebody may go, in the loop's next round."""
        if self._sleeping:
            self._plan(0.0)

    def _plan(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + delay_s
        if self._due <= due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due, self._timer = due, loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        """One at a time: the next one is decided over when this one's lease is taken, which wakes us again."""
        self._due, self._timer = inf, None
        now = self._clock()
        guest = self.desk.next(now)
        if guest is not None:
            self._rouse(guest)
        if now >= self._next_count_at:
            self._next_count_at = now + LOOK_S
            for stranded in self.desk.stranded(now, self.queue_s):
                self._rouse(stranded, NoReplica(f"no replica is ready; waited {self.queue_s:g} s for one"))
        if self._sleeping:
            at = self.desk.next_at(now)
            self._plan(LOOK_S if at == inf else min(LOOK_S, at - now))

    def _rouse(self, guest: Guest, error: GatewayError | None = None) -> None:
        future = self._sleeping.get(guest)
        if future is None or future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
