from random import Random

import pytest

from gateway.fleet_table import FleetTable
from gateway.index.factory import make_index
from gateway.index.prefix_index import Match
from gateway.routing.candidates import id_hash
from gateway.routing.native.library import load_library
from replica.protocol.records import Snapshot
from tests.gateway.fakes import blocks


def write(table: FleetTable, replica: str, ready: bool, tokens: int) -> None:
    table.write(
        replica,
        ready=ready,
        max_context=4096,
        beat_at=1.0,
        tripped_at=0.0,
        closed_until=0.0,
        c0=tokens,
        tokens_per_s=1.0,
    )


@pytest.mark.parametrize("native", [True, False])
def test_it_follows_replicas_and_index_as_they_come_and_go(native: bool) -> None:
    print("seed", 4)
    rng, table, index = Random(4), FleetTable(load_library() if native else None), make_index()
    path, state = list(blocks(1, 40)), dict[str, tuple[bool, int]]()
    for _ in range(400):
        replica = f"r{rng.randrange(40)}"
        if replica in state and rng.random() < 0.4:
            table.remove(replica)
            del state[replica]
        else:
            state[replica] = rng.random() < 0.9, rng.randrange(1000)
            write(table, replica, *state[replica])
        changed = f"r{rng.randrange(40)}"
        if rng.random() < 0.5:
            index.load(changed, Snapshot("e", 0, "0-0", tuple(path[: rng.randrange(40)])))
        else:
            index.drop(changed)
        matches = index.match(path)
        tried = {f"r{rng.randrange(40)}"} if rng.random() < 0.3 else set()
        seen = table.choosable(1.0, False, 100, tried, matches)
        open_now = {each for each, (ready, _) in state.items() if ready} - tried
        assert set(seen.ids if seen else ()) == open_now
        if seen is None:
            continue
        oracle = table.candidates(table.open(1.0, False, 100, tried), matches, 1.0)
        assert seen.ids == oracle.ids
        assert seen.numbers.tobytes() == oracle.numbers.tobytes()
        assert seen.figures[:3] == oracle.figures[:3]
        for place, each in enumerate(seen.ids):
            assert seen.c0[place] == state[each][1]
            assert seen.id_hash[place] == id_hash(each)
            assert (seen.held_blocks[place], seen.matched_blocks[place]) == matches.get(each, Match(0, 0))


def test_breakers_and_slow_starts_count_alike_in_both() -> None:
    print("seed", 7)
    rng = Random(7)
    tables = FleetTable(load_library()), FleetTable(None)
    for number in range(300):
        gates = {
            "ready": rng.random() < 0.9,
            "closed_until": rng.choice((0.0, 0.0, 2.0)),
            "tripped_at": rng.choice((0.0, 0.0, 3.0)),
            "warm_at": rng.choice((0.0, 0.0, 5.0)),
            "leases": rng.randrange(6),
        }
        for table in tables:
            write(table, f"r{number % 7}", True, 1)
            table.write(f"r{number % 7}", **gates)
        frozen, tried = rng.random() < 0.2, [f"r{rng.randrange(7)}"]
        seen = [table.choosable(1.0, frozen, 100, tried, {}) for table in tables]
        native, oracle = (each.ids if each else () for each in seen)
        assert native == oracle


@pytest.mark.parametrize("native", [True, False])
def test_who_may_be_chosen(native: bool) -> None:
    table = FleetTable(load_library() if native else None)
    assert table.choosable(1.0, False, 100, (), {}) is None
    for replica in "abcdef":
        write(table, replica, True, 1)
    table.write("a", ready=False)
    table.write("b", closed_until=1.5)
    table.write("c", max_context=99)
    table.write("d", tripped_at=1.0)

    def ids(now: float, frozen: bool, *tried: str) -> str:
        seen = table.choosable(now, frozen, 100, tried, {})
        return "".join(seen.ids) if seen else ""

    assert ids(1.0, False) == "ef"
    assert ids(1.0, True) == "def"
    assert ids(1.5, False, "e", "nobody") == "bf"
    assert ids(1.0, False, "e", "f") == ""


@pytest.mark.parametrize("native", [True, False])
def test_a_decision_keeps_its_numbers(native: bool) -> None:
    table = FleetTable(load_library() if native else None)
    write(table, "a", True, 1)
    seen = table.choosable(1.0, False, 100, (), {"a": Match(1, 2)})
    write(table, "a", True, 2)
    assert seen is not None
    assert seen.c0.tolist() == [1] and seen.matched_blocks.tolist() == [2]
