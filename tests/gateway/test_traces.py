from gateway.router import Considered
from gateway.routing.base import RouteRequest
from gateway.routing.ttft import Ttft
from gateway.traces import Trace, Traces
from tests.gateway.routing.views import candidates, view


def decision(rows: int) -> Considered:
    fleet = candidates(*(view(f"r{number}") for number in range(rows)))
    request = RouteRequest(17, [1])
    return Considered(request, Ttft().choose(request, fleet, 0.0), fleet, (), retry=False)


def test_the_oldest_requests_are_forgotten() -> None:
    traces = Traces(max_requests=3)
    for number in range(5):
        traces.begin(str(number), 0.0)
    assert [traces.get(str(number)) is not None for number in range(5)] == [False, False, True, True, True]


def test_big_decisions_leave_room_for_fewer_requests() -> None:
    traces = Traces(max_requests=100, max_rows=50)
    for number in range(10):
        traces.decided(traces.begin(str(number), 0.0), decision(20))
    assert len(traces) == 2
    traces.decided(traces.begin("again", 0.0), decision(20))
    assert traces.get("again") is not None


def test_an_id_that_comes_again_replaces_the_old_one() -> None:
    traces = Traces()
    old = traces.begin("x", 0.0)
    new = traces.begin("x", 1.0)
    traces.decided(old, decision(2))
    assert traces.get("x") is new
    assert len(traces) == 1


def test_the_replica_s_times_are_shifted_to_the_dispatch() -> None:
    trace = Trace("x", received_at=100.0)
    trace.mark("received", 100.0)
    trace.dispatched(100.5, "r0")
    trace.first_byte(101.0)
    merged = trace.timeline({"events": [{"event": "prefill", "at_s": 0.2}], "kv": [[0.3, 4]]})
    assert [(item["event"], round(item["at_s"], 3)) for item in merged["events"]] == [
        ("received", 0.0),
        ("dispatched", 0.5),
        ("prefill", 0.7),
        ("first_byte", 1.0),
    ]
    assert [[round(at, 3), entries] for at, entries in merged["kv"]] == [[0.8, 4]]
