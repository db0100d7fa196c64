from gateway.fleet import Beat, Fleet
from gateway.index.factory import make_index
from gateway.index.prefix_index import EXPECT_MAX_BLOCKS, EXPECT_TTL_S, Match
from gateway.intents.outbox import Outbox
from gateway.router import RENEW_MAX_BLOCKS, Router
from gateway.routing.base import RouteRequest
from gateway.routing.ttft import Ttft
from replica.protocol.intents import Intent, Intents
from replica.protocol.records import Snapshot
from tests.gateway.fakes import IDENTITY, blocks, heartbeat


def router() -> Router:
    made = Router(Fleet(IDENTITY), make_index(), Ttft())
    made.fleet.update({"a": Beat(heartbeat("a", max_context=1 << 30))}, 0.0)
    made.index.load("a", Snapshot("e1", 0, "0-0", ()))
    return made


def send(router: Router, hashes: list[int], now: float) -> None:
    request = RouteRequest(16 * len(hashes) + 1, hashes)
    decision = router.route(request, request.tokens, set(), now)
    assert decision is not None
    router.take(request, decision, now)


def test_what_a_request_still_waits_for_stays_expected() -> None:
    made, path = router(), list(blocks(1, 80))
    send(made, path, 0.0)
    for now in (EXPECT_TTL_S, 2 * EXPECT_TTL_S, 7 * EXPECT_TTL_S):
        made.route(RouteRequest(17, list(blocks(2, 1))), 17, set(), now)
        assert made.index.match(path) == {"a": Match(0, 80)}


def test_while_redis_is_away_what_was_routed_stays_expected() -> None:
    made, path, short = router(), list(blocks(1, 80)), RouteRequest(17, list(blocks(2, 1)))
    request = RouteRequest(16 * 80 + 1, path)
    decision = made.route(request, request.tokens, set(), 0.0)
    assert decision is not None
    made.take(request, decision, 0.0).release(0.1)
    made.fleet.freeze()
    for step in range(1, 10):
        made.route(short, 17, set(), step * EXPECT_TTL_S)
    assert made.index.match(path) == {"a": Match(0, 80)}
    made.fleet.update({"a": Beat(heartbeat("a", max_context=1 << 30))}, 10 * EXPECT_TTL_S)
    made.route(short, 17, set(), 10 * EXPECT_TTL_S)
    assert made.index.match(path) == {"a": Match(0, 80)}
    made.route(short, 17, set(), 11 * EXPECT_TTL_S)
    assert not made.index.match(path)


def test_what_is_renewed_leaves_room_for_what_comes() -> None:
    made = router()
    paths = [list(blocks(number, 10_000)) for number in range(20)]
    for number, path in enumerate(paths):
        send(made, path, number / 100)
        send(made, path, number / 100)
    made.index.expire(100.0)
    made._renew()
    assert RENEW_MAX_BLOCKS // 2 < made.index._num_expected() <= RENEW_MAX_BLOCKS < EXPECT_MAX_BLOCKS
    assert made.index.match(paths[-1]) == {"a": Match(0, 10_000)}
    assert not made.index.match(paths[0])


def pair() -> tuple[Router, Router]:
    """Two gateways of a fleet with replicas a and b, which know of each other."""
    routers = []
    for name in ("g1", "g2"):
        made = Router(Fleet(IDENTITY), make_index(), Ttft(), Outbox(name))
        made.fleet.update({replica: Beat(heartbeat(replica)) for replica in ("a", "b")}, 0.0)
        for replica in ("a", "b"):
            made.index.load(replica, Snapshot("e1", 0, "0-0", ()))
        routers.append(made)
    one, other = routers
    for _ in range(2):
        tell(one, other, 0.0)
        tell(other, one, 0.0)
    return one, other


def tell(one: Router, other: Router, now: float) -> Intents | None:
    told = one.outbox.take(now)
    if told is not None:
        other.heard(told, now + 0.001)
    return told


def queued(router: Router, now: float) -> dict[str, tuple[int, int]]:
    return {name: (s.queue_tokens, s.queue_tokens - s.own_tokens) for name, s in router.fleet.statuses(now).items()}


def test_what_one_gateway_routes_the_other_counts_and_expects_until_its_first_token() -> None:
    one, other = pair()
    request = RouteRequest(16 * 20 + 1, list(blocks(1, 20)))
    decision = one.route(request, request.tokens, set(), 1.0)
    assert decision is not None
    lease = one.take(request, decision, 1.0)
    assert tell(one, other, 1.0) is not None
    assert queued(other, 1.0)[decision.choice] == (321, 321)
    assert queued(one, 1.0)[decision.choice] == (321, 0)
    assert other.index.match(request.hashes) == {decision.choice: Match(0, 20)}
    elsewhere = {("a", "e1"), ("b", "e1")} - {(decision.choice, "e1")}
    same = other.route(request, request.tokens, elsewhere, 1.01)
    assert same is not None
    assert (same.choice, same.cached_tokens, same.held_tokens) == (decision.choice, 320, 0)
    lease.first_token(1.2)
    lease.release(1.3)
    assert tell(one, other, 1.3) is not None
    assert queued(other, 1.3)[decision.choice] == (0, 0)
    assert tell(one, other, 1.4) is None


def test_only_blocks_that_the_replica_has_not_are_told() -> None:
    one, other = pair()
    path = list(blocks(1, 20))
    one.fleet.update({"a": Beat(heartbeat("a"))}, 1.0)
    send(one, path[:15], 1.0)
    send(one, path, 1.0)
    told = tell(one, other, 1.0)
    assert told is not None
    assert [list(intent.hashes) for intent in told.routed] == [path[:15], path[15:]]
    assert {match.expected for match in other.index.match(path).values()} == {20}


def test_own_intents_repeated_ones_and_unknown_replicas_change_nothing() -> None:
    one, other = pair()
    send(one, list(blocks(1, 20)), 1.0)
    told = tell(one, other, 1.0)
    assert told is not None
    before = queued(one, 1.0), queued(other, 1.0)
    assert one.heard(told, 1.0) == 0
    assert other.heard(told, 1.0) == 0
    unknown = Intents("g3", (Intent(0, "nobody", 100, 0.0, (1,)),))
    assert other.heard(unknown, 1.0) == 1
    assert (queued(one, 1.0), queued(other, 1.0)) == before


def test_a_gateway_that_only_hears_forgets_what_it_expects() -> None:
    one, other = pair()
    for number in range(1, 300):
        now = number / 5
        tell(other, one, now)
        send(one, list(blocks(number, 64)), now)
        assert tell(one, other, now) is not None
    assert 64 < other.index._num_expected() <= 64 * 5 * (EXPECT_TTL_S + 1)
