"""The other gateways of the fleet, as far as they have been heard of. Pure."""

from collections import OrderedDict

HELLO_S = 1.0
"""A gateway that has nothing else to say says that it's there."""
PEER_TTL_S = 5 * HELLO_S
PEERS_MAX = 256


class Peers:
    def __init__(self) -> None:
        self._heard: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """When, and the highest number of its requests; the one heard last comes last."""

    def count(self, now: float) -> int:
        heard = self._heard
        while heard and next(iter(heard.values()))[0] < now - PEER_TTL_S:
            heard.popitem(last=False)
        return len(heard)

    def hear(self, gateway: str, number: int, now: float) -> int:
        """An entry of a gateway, with the highest number in it. The highest before: what isn't above that was told
        already, or is out of its turn."""
        _, newest = self._heard.get(gateway, (now, -1))
        self._heard[gateway] = (now, max(newest, number))
        self._heard.move_to_end(gateway)
        if len(self._heard) > PEERS_MAX:
            self._heard.popitem(last=False)
        return newest
