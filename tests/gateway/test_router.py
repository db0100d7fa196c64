from gateway.fleet import Beat, Fleet
from gateway.index.factory import make_index
from gateway.index.prefix_index import EXPECT_MAX_BLOCKS, EXPECT_TTL_S, Match
from gateway.router import RENEW_MAX_BLOCKS, Router
from gateway.routing.base import RouteRequest
from gateway.routing.ttft import Ttft
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
