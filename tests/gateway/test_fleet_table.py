from random import Random

from gateway.fleet_table import FleetTable
from gateway.index.factory import make_index
from gateway.index.prefix_index import Match
from gateway.routing.candidates import id_hash
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


def test_it_follows_replicas_and_index_as_they_come_and_go() -> None:
    print("seed", 4)
    rng, table, index = Random(4), FleetTable(), make_index()
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
        seen = table.candidates(table.open(1.0, False, 100, tried), matches, 1.0)
        assert set(seen.ids) == {each for each, (ready, _) in state.items() if ready} - tried
        for place, each in enumerate(seen.ids):
            assert seen.c0[place] == state[each][1]
            assert seen.id_hash[place] == id_hash(each)
            assert (seen.held_blocks[place], seen.matched_blocks[place]) == matches.get(each, Match(0, 0))


def test_a_decision_keeps_its_numbers() -> None:
    table = FleetTable()
    write(table, "a", True, 1)
    seen = table.candidates(table.open(1.0, False, 100, ()), {"a": Match(1, 2)}, 1.0)
    write(table, "a", True, 2)
    assert seen.c0.tolist() == [1] and seen.matched_blocks.tolist() == [2]
