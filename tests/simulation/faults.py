"""What happens to a fleet. Each fault acts at once; what lasts undoes itself before peace begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.parties import KEYS, SimReplica
from tests.simulation.server import OTHER_TYPE, Mischief, Server

if TYPE_CHECKING:
    from tests.simulation.world import World


def for_a_while(world: World, most_s: float, undo: Callable[[], None]) -> None:
    """Never beyond the end of the faults."""
    seconds = world.rng.uniform(0.02, most_s)
    left = max(0.0, world.faults_end - world.loop.time())
    world.loop.call_later(min(seconds, left), undo)


def cut(world: World) -> None:
    clients = list(world.network.clients)
    if clients:
        world.rng.choice(clients).kill()


def cut_all(world: World) -> None:
    world.network.kill_all()


def flush(world: World) -> None:
    world.network.server.wipe()


def lose_keys(world: World) -> None:
    server, rng = world.network.server, world.rng
    if server.values:
        names = sorted(server.values)
        server.wipe(*rng.sample(names, rng.randrange(1, min(3, len(names)) + 1)))


def lose_stream(world: World) -> None:
    world.network.server.wipe(KEYS.stream)


def trim(world: World) -> None:
    world.network.server.trim(KEYS.stream, world.rng.randrange(4))


def lose_intents(world: World) -> None:
    world.network.server.wipe(KEYS.intents)


def trim_intents(world: World) -> None:
    world.network.server.trim(KEYS.intents, world.rng.randrange(4))


def usurp_intents(world: World) -> None:
    """Somebody uses the key for something else."""
    world.network.server.values[KEYS.intents] = OTHER_TYPE

    def undo() -> None:
        # NOTE: perhaps it's another server by then, with a copy of it.
        if world.network.server.values.get(KEYS.intents) == OTHER_TYPE:
            world.network.server.wipe(KEYS.intents)

    for_a_while(world, 2.0, undo)


def go_down(world: World, server: Server) -> None:
    network = world.network
    network.down = True
    network.replace(server)

    def up() -> None:
        network.down = False

    for_a_while(world, world.rng.choice([0.3, 3.0]), up)


def restart_empty(world: World) -> None:
    go_down(world, Server(world.loop.time, world.rng, world.network.server.stream_max))


def restart_persisted(world: World) -> None:
    go_down(world, world.rng.choice([*world.copies, world.network.server]).copy())


def fail_over(world: World) -> None:
    world.network.replace(world.rng.choice(world.copies).copy())


def slow(world: World) -> None:
    network = world.network
    network.slow_s = world.rng.choice([0.1, 1.0])

    def undo() -> None:
        network.slow_s = 0.0

    for_a_while(world, 3.0, undo)


def lossy(world: World) -> None:
    network = world.network
    network.loss = world.rng.choice([0.05, 0.3])

    def undo() -> None:
        network.loss = 0.0

    for_a_while(world, 3.0, undo)


def out_of_memory(world: World) -> None:
    server = world.network.server
    server.oom = True

    def undo() -> None:
        server.oom = False

    for_a_while(world, 3.0, undo)


def read_only(world: World) -> None:
    server = world.network.server
    server.read_only = True

    def undo() -> None:
        server.read_only = False

    for_a_while(world, 2.0, undo)


def jump(world: World) -> None:
    world.network.server.offset_s += world.rng.choice([-3600.0, 3600.0, -1.0, 1.0, -0.01])


def mischief(world: World) -> None:
    server = world.network.server
    server.mischief = Mischief(*(world.rng.choice([0.0, 0.1]) for _ in range(3)))

    def undo() -> None:
        server.mischief = Mischief()

    for_a_while(world, 2.0, undo)


def corrupt(world: World) -> None:
    server = world.network.server
    server.corrupt = world.rng.choice([0.1, 0.5])

    def undo() -> None:
        server.corrupt = 0.0

    for_a_while(world, 2.0, undo)


def pause(world: World) -> None:
    party = world.rng.choice([*(r.party for r in (*world.replicas, *world.twins)), *(g.name for g in world.gateways)])
    left = max(0.0, world.faults_end - world.loop.time())
    world.tell(f"  {party}")
    world.loop.pause(party, min(world.rng.choice([0.3, 5.0]) * world.rng.random(), left))


def _end(world: World, end: Callable[[SimReplica], None]) -> None:
    rng = world.rng
    replica = rng.choice(world.replicas)
    world.tell(f"  {replica.name}")
    end(replica)
    careful = rng.random() < 0.5
    if rng.random() < 0.8:
        world.loop.call_later(
            min(rng.uniform(0.0, 3.0), max(0.0, world.faults_end - world.loop.time())),
            _restart,
            world,
            replica,
            careful,
        )


def _restart(world: World, replica: SimReplica, careful: bool) -> None:
    world.tell(f"  {replica.party} starts")
    replica.start(careful)


def kill(world: World) -> None:
    _end(world, SimReplica.kill)


def leave(world: World) -> None:
    _end(world, SimReplica.leave)


def twin(world: World) -> None:
    """Another process takes a live replica's id; in the end one of the two stops."""
    rng = world.rng
    one = rng.choice(world.replicas)
    if one.digest is None or one.has_twin:
        return
    world.tell(f"  {one.name}")
    other = one.twin()
    world.twins.append(other)
    other.start(careful=False)

    def undo() -> None:
        stops, stays = rng.sample([one, other], 2)
        world.tell(f"  {stops.party} stops, {stays.party} stays")
        world.replicas[world.replicas.index(one)] = stays
        stops.retire(rng.choice([SimReplica.kill, SimReplica.leave]))
        stays.has_twin = False

    for_a_while(world, 3.0, undo)


def reset(world: World) -> None:
    replica = world.rng.choice(world.replicas)
    world.tell(f"  {replica.name}")
    replica.reset()


def restart_gateway(world: World) -> None:
    gateway = world.rng.choice(world.gateways)
    world.tell(f"  {gateway.name}")
    gateway.restart()


FAULTS: dict[str, Callable[[World], None]] = {
    fault.__name__: fault
    for fault in (
        cut,
        cut_all,
        flush,
        lose_keys,
        lose_stream,
        trim,
        lose_intents,
        trim_intents,
        usurp_intents,
        restart_empty,
        restart_persisted,
        fail_over,
        slow,
        lossy,
        out_of_memory,
        read_only,
        jump,
        mischief,
        corrupt,
        pause,
        kill,
        leave,
        twin,
        reset,
        restart_gateway,
    )
}
