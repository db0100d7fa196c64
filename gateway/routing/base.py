"""What a routing policy sees and what it answers. Pure: no I/O, no clock, no randomness."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gateway.routing.candidates import Candidates, Floats, usable_tokens


class RouteRequest(NamedTuple):
    tokens: int
    """Prompt length."""
    hashes: Sequence[int]
    """Chained hashes of the prompt's whole blocks."""
    session: str = ""
    """What the client calls the conversation, if anything."""


@dataclass(slots=True, eq=False)
class Decision:
    """A choice and why. Terms are kept as columns: most decisions are never looked at again."""

    policy: str
    candidates: tuple[str, ...]
    place: int
    """Of the choice among the candidates."""
    _cost: Floats | None
    """None: it is among the columns."""
    columns: Mapping[str, Floats]
    """What the cost is made of. Names end in `_s` for seconds, the others are tokens or plain numbers."""
    cached_tokens: int
    """Predicted for the choice, before any discount for trust."""
    held_tokens: int
    """Those of them that the choice's digest vouches for; the others are still being computed for somebody else."""
    shared_hash: int = 0
    """Of the last block that some candidate has of the prompt, or is about to compute; 0 unless its policy needs it."""
    choice: str = field(init=False)

    def __post_init__(self) -> None:
        self.choice = self.candidates[self.place]

    @property
    def cost(self) -> Floats:
        """Of each candidate; the lower the better. What it counts is the policy's."""
        return self.columns["cost"] if self._cost is None else self._cost

    def rows(self) -> dict[str, dict[str, float]]:
        """Every candidate's terms; `behind` is by how much it lost."""
        columns = {name: column.tolist() for name, column in self.columns.items()}
        columns |= {"cost": self.cost.tolist(), "behind": (self.cost - self.cost[self.place]).tolist()}
        return {
            replica: {name: column[place] for name, column in columns.items()}
            for place, replica in enumerate(self.candidates)
        }


class Policy(Protocol):
    """Chooses a replica. What it remembers changes in `placed` only, so it can be asked without consequences.

    With an attribute `binds_late = True` its requests may wait in the gateway, and are decided over again; see hold.py.
    """

    name: str

    def choose(self, request: RouteRequest, candidates: Candidates, now: float) -> Decision:
        """`candidates` is not empty, and its order must not matter."""
        ...

    def placed(self, request: RouteRequest, decision: Decision, now: float) -> None:
        """The request goes there, by this policy's choice."""
        ...


class Stateless:
    """A policy that remembers nothing."""

    def placed(self, request: RouteRequest, decision: Decision, now: float) -> None:
        pass


def decide(
    policy: Policy, request: RouteRequest, candidates: Candidates, place: int, cost: Floats, **columns: Floats
) -> Decision:
    matched, held, reuse_tokens = candidates.blocks_at(place)
    return Decision(
        policy=policy.name,
        candidates=candidates.ids,
        place=place,
        _cost=cost,
        columns=columns,
        cached_tokens=usable_tokens(matched, request.tokens, reuse_tokens),
        held_tokens=usable_tokens(held, request.tokens, reuse_tokens),
    )


def last_hash(request: RouteRequest) -> int:
    """A key that differs between prompts unless they are equal block by block."""
    return request.hashes[-1] if request.hashes else 0


def prefix_key(request: RouteRequest, blocks: int) -> int:
    """A key that prompts share which begin with the same blocks."""
    return request.hashes[min(blocks, len(request.hashes)) - 1] if request.hashes else 0


def branch_hash(request: RouteRequest, candidates: Candidates) -> int:
    """A key that prompts over the same context share, and others don't.

    The first block is no such key, since all prompts begin with one system prompt; the last one neither, as each
    question differs. So: the middle of the prompt, or the first block that no candidate has where that lies deeper.
    """
    hashes, deepest = request.hashes, candidates.figures.deepest
    count = len(hashes)
    if not count:
        return 0
    block = deepest if deepest > count // 2 else count // 2
    return hashes[block if block < count else count - 1]
