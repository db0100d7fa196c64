"""Candidates for policies, written replica by replica."""

from dataclasses import dataclass, replace

import numpy as np

from gateway.routing.base import Decision
from gateway.routing.candidates import COLUMNS, SIZES, Candidates, Floats, id_hash, size_class
from gateway.routing.native.library import the_library
from replica.protocol.records import CostModel
from tests.gateway.fakes import COST


@dataclass(frozen=True)
class View:
    id: str
    queue_tokens: int = 0
    queued: tuple[int, ...] = ()
    """Known requests in the queue, by their uncached tokens."""
    shortest_first: bool = True
    max_running: int = 64
    stay_s: float = 0.0
    waiting: int = 0
    decoding: int = 0
    active_blocks: int = 0
    free_blocks: int = 100
    total_blocks: int = 1000
    trust: float = 1.0
    unpromised: float = 0.0
    reuse_tokens: int = 16
    reuse: float = 0.5
    cost: CostModel = COST
    matched_blocks: int = 0
    held_blocks: int = 0


def view(replica: str, **changes: object) -> View:
    return replace(View(replica), **changes)  # type: ignore[arg-type]


def candidates(*views: View, native: bool = True) -> Candidates:
    library = the_library() if native else None

    def column(name: str) -> Floats:
        return np.array([getattr(each, name, None) or getattr(each.cost, name, 0.0) for each in views], dtype=float)

    sizes = np.zeros((2, SIZES, len(views)))
    for place, each in enumerate(views):
        for tokens in each.queued:
            sizes[:, size_class(tokens), place] += (tokens, 1)
    named = {name: column(name) for name in COLUMNS if name != "step_tokens"}
    return Candidates.of(
        tuple(each.id for each in views),
        np.array([id_hash(each.id) for each in views], np.uint64),
        library,
        queue_tokens=np.array([each.queue_tokens or sum(each.queued) for each in views], dtype=float),
        size_tokens=sizes[0],
        size_counts=sizes[1],
        step_tokens=column("max_step_tokens"),
        matched_blocks=column("matched_blocks"),
        held_blocks=column("held_blocks"),
        **named,
    )


def placed_at(replica: str) -> Decision:
    """Some policy's choice, as `Policy.placed` is told of it."""
    return Decision("", (replica,), 0, np.zeros(1), {}, 0, 0)
