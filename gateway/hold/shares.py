"""Fair shares of the fleet's prefill: who has had how much, in uncached prompt tokens that were really sent.

Start-time fair queueing (Goyal, Vin, Cheng 1996; for LLM serving see VTC, Sheng et al. 2024). A tenant's tag is what it
has been served, never less than the virtual time at which it came back: so nobody saves up credit while away. The
smallest tag goes next. Deficit round robin gives the same shares, but its turn is lost where the tenant has nothing for
the replica that has room just now; a tag waits. Pure.
"""

from heapq import heapify, heappop, heappush, heapreplace

_SWEEP_AT_LEAST = 256


class Shares:
    def __init__(self) -> None:
        self._virtual_time = 0.0
        """The tag of what was served last, never falling. Tags below it are as good as none."""
        self._tags: dict[str, float] = {}
        self._open: dict[str, int] = {}
        """Tokens of each tenant that have no first token yet, sent or not."""
        self._least: list[tuple[float, str]] = []
        """Heap of the tenants in `_open`; an entry may be too low, or of one that is gone."""
        self._sweep_at = _SWEEP_AT_LEAST

    def __len__(self) -> int:
        return len(self._tags)

    @property
    def tenants(self) -> int:
        """That have something open."""
        return len(self._open)

    def tag(self, tenant: str) -> float:
        return self._tags.get(tenant, self._virtual_time)

    def open_tokens(self, tenant: str) -> int:
        return self._open.get(tenant, 0)

    def open(self, tenant: str, tokens: int) -> None:
        """It wants so much, at least one."""
        before = self._open.get(tenant)
        if before is None:
            before = 0
            self._tags[tenant] = max(self._virtual_time, self.tag(tenant))
            heappush(self._least, (self._tags[tenant], tenant))
        self._open[tenant] = before + tokens

    def serve(self, tenant: str, tokens: float) -> None:
        """Of one that has something open: so much is sent."""
        tag = self._tags[tenant]
        if tag > self._virtual_time:
            self._virtual_time = tag
        self._tags[tenant] = tag + tokens

    def close(self, tenant: str, tokens: int) -> None:
        """What was opened has its first token, or has come to nothing."""
        self._open[tenant] -= tokens
        if not self._open[tenant]:
            del self._open[tenant]
            if not self._open:
                # Nobody waits: what was served before gives nobody an advantage.
                self._tags.clear()
            self._sweep()

    def lead(self, tenant: str) -> float:
        """By how much it has had more than who has had the least of those that have something open."""
        least = self._least
        while least:
            tag, first = least[0]
            if first not in self._open:
                heappop(least)
            elif tag != self._tags[first]:
                heapreplace(least, (self._tags[first], first))
            else:
                return self.tag(tenant) - tag
        return 0.0

    def _sweep(self) -> None:
        """Forgets, now and then, tenants that have no more than one that was never seen."""
        if len(self._tags) + len(self._least) >= self._sweep_at:
            self._tags = {
                tenant: tag for tenant, tag in self._tags.items() if tenant in self._open or tag > self._virtual_time
            }
            self._least = [(self._tags[tenant], tenant) for tenant in self._open]
            heapify(self._least)
            self._sweep_at = max(_SWEEP_AT_LEAST, 2 * (len(self._tags) + len(self._least)))
