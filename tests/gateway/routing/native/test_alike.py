"""What native code answers along with decisions, beside the plain form of each."""

from array import array
from random import Random

import pytest

from gateway.fleet_table import FleetTable
from gateway.routing.hold import ALL, NOTHING, early_at, early_s
from gateway.routing.native.library import the_library
from gateway.routing.survey import survey, survey_of
from gateway.routing.ttft import Ttft
from replica.protocol.hashing import BLOCK_SIZE, Fork, block_hashes, pack_tokens
from tests.gateway.routing.native.fleets import both, random_fleet, random_request


@pytest.mark.parametrize("seed", range(10))
def test_how_early_a_request_is(seed: int) -> None:
    print("seed", seed)
    rng = Random(seed)
    for _ in range(60):
        fast, slow = both(random_fleet(rng, random_request(rng)))
        place = rng.randrange(len(fast))
        for size in (NOTHING, 1.0, float(rng.randrange(1, 40_000)), ALL):
            expected = float(early_s(slow, size)[place])
            assert early_at(fast, size, place) == pytest.approx(expected, rel=1e-9), size
            assert early_at(slow, size, place) == expected


@pytest.mark.parametrize("seed", range(5))
def test_the_survey_that_comes_with_a_decision_is_that_of_its_choice(seed: int) -> None:
    print("seed", seed)
    rng = Random(seed)
    for _ in range(60):
        request = random_request(rng)
        fast, other = both(random_fleet(rng, request))
        decision = Ttft().choose(request, fast, 0.0)
        assert survey_of(request.tokens, fast, decision) == survey(request.tokens, fast, decision.place)
        if len(fast) > 1:
            queue = other.queue_tokens + 1000.0
            later = fast.changed(queue_tokens=queue)
            assert survey_of(request.tokens, later, decision) == survey(request.tokens, later, decision.place)


@pytest.mark.parametrize("seed", range(5))
def test_figures_of_all_candidates_are_those_of_numpy(seed: int) -> None:
    print("seed", seed)
    rng = Random(seed)
    tables = FleetTable(the_library()), FleetTable(None)
    for number in range(rng.randrange(1, 20)):
        level = rng.choice((0.0, float(rng.randrange(1, 9000))))
        numbers = {name: rng.random() for name in ("c0", "c_lin", "c_dec", "decoding")} | {
            **{"ready": 1.0, "beat_at": 1.0, "max_context": 4096.0, "step_tokens": float(rng.choice((64, 8192)))},
            **{"level": level, "bound": level},
        }
        for table in tables:
            table.write(f"r{number}", **numbers)
    native, plain = (table.choosable(2.0, False, 100, (), {}) for table in tables)
    assert native is not None and plain is not None
    assert native.figures == pytest.approx(plain.figures)


@pytest.mark.parametrize("seed", range(5))
def test_block_hashes_are_those_of_the_protocol(seed: int) -> None:
    print("seed", seed)
    rng, library = Random(seed), the_library()
    assert library is not None
    for _ in range(100):
        tokens = [rng.randrange(1 << rng.choice((1, 16, 32))) for _ in range(rng.randrange(400))]
        namespace, block = rng.getrandbits(64), rng.randrange(20)
        fork = Fork(block, rng.randbytes(8)) if rng.random() < 0.5 else None
        made = array("Q", bytes(8 * (len(tokens) // BLOCK_SIZE)))
        tag = 0 if fork is None else int.from_bytes(fork.tag, "little")
        at = made.buffer_info()[0]
        library.block_hashes(pack_tokens(tokens), len(tokens), namespace, -1 if fork is None else block, tag, at)
        assert made.tolist() == block_hashes(tokens, namespace, fork)
