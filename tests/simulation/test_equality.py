"""Every gateway's index equals every replica's tree, whatever happens: hundreds of histories, or as many as
RYOKAN_SIM_SEEDS says. A failure names its seed: `python -m tests.simulation.world SEED` runs it alone."""

import logging
import os
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.simulation.world import run

SEEDS = int(os.environ.get("RYOKAN_SIM_SEEDS", "250"))
CHUNK = 50
"""Seeds a test, so that each ends soon."""


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_index_equals_every_tree(first: int) -> None:
    reasons: Counter[str] = Counter()
    told: Counter[str] = Counter()
    for seed in range(first, min(first + CHUNK, SEEDS)):
        for gateway in run(seed).gateways:
            reasons.update(gateway.reasons)
            told.update(gateway.told)
    # The faults have done their work.
    every = {"join", "gap", "root", "epoch", "trimmed", "reconnect", "wiped"}
    assert {"join", "gap", "root", "epoch"} <= reasons.keys() <= every
    # And the gateways theirs.
    assert {"sent", "heard", "lost", "stale"} <= told.keys()


def test_the_same_seed_is_the_same_history() -> None:
    one, other = run(5), run(5)
    assert (one.story, one.network.server.calls) == (other.story, other.network.server.calls)
