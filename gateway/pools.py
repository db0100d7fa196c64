"""The models behind a gateway, each with a pool of replicas: what depends on the model is a pool's own, and all else
(connections, budgets, keys, metrics) is the gateway's."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.dispatch import Dispatcher
from gateway.errors import ModelNotFound
from gateway.fleet import Fleet
from gateway.index.prefix_index import PrefixIndex
from gateway.probes import Prober
from gateway.router import Router
from gateway.routing.shadow import Shadow
from gateway.served import ServedModel
from gateway.tokens import PromptTokenizer
from replica.protocol.text import ModelText


class ContextLimit:
    """The longest context of the fleet, looked up anew ten times a second and not for each request."""

    STALE_S = 0.1

    def __init__(self, fleet: Fleet, own: int) -> None:
        """`own`: of the model, which no replica exceeds."""
        self._fleet = fleet
        self._own = own
        self._value = own
        self._until = float("-inf")

    def at(self, now: float) -> int:
        if now >= self._until:
            self._value, self._until = min(self._own, self._fleet.max_context(now)), now + self.STALE_S
        return self._value


@dataclass(slots=True)
class Pool:
    served: ServedModel
    text: ModelText
    tokenizer: PromptTokenizer
    fleet: Fleet
    context_limit: ContextLimit
    index: PrefixIndex
    router: Router
    shadow: Shadow
    prober: Prober | None
    _dispatcher: Dispatcher | None = None

    @property
    def name(self) -> str:
        return self.served.name

    @property
    def dispatcher(self) -> Dispatcher:
        """While the application runs."""
        assert self._dispatcher is not None
        return self._dispatcher

    @dispatcher.setter
    def dispatcher(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher


class Pools:
    def __init__(self, pools: Sequence[Pool]) -> None:
        """At least one; the first is taken where no model is named."""
        self._pools = tuple(pools)
        self._by_name = {name: pool for pool in pools for name in (pool.name, *pool.served.aliases)}

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools)

    def chosen(self, model: str | None) -> "Sequence[Pool]":
        """Of an operator's question: None is about all. Raises ModelNotFound."""
        return self._pools if model is None else (self.of(model),)

    @property
    def first(self) -> Pool:
        return self._pools[0]

    @property
    def names(self) -> list[str]:
        """Without aliases."""
        return [pool.name for pool in self._pools]

    def find(self, model: str) -> Pool | None:
        """By its name or an alias."""
        return self._by_name.get(model)

    def of(self, model: str | None) -> Pool:
        """None: the first. Raises ModelNotFound."""
        if model is None:
            return self.first
        pool = self._by_name.get(model)
        if pool is None:
            names = ", ".join(map(repr, self.names))
            raise ModelNotFound(f"the model {model!r} does not exist; this gateway serves {names}")
        return pool
