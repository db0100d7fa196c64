import pytest

import gateway.routing.session as session_module
from gateway.routing.base import RouteRequest
from gateway.routing.session import TTL_S, Session
from tests.gateway.fakes import blocks
from tests.gateway.routing.views import View, candidates, placed_at, view


def send(policy: Session, request: RouteRequest, *views: View, now: float = 0.0) -> str:
    choice = policy.choose(request, candidates(*views), now).choice
    policy.placed(request, placed_at(choice), now)
    return choice


def asked(session: str, prompt: int = 1) -> RouteRequest:
    return RouteRequest(1025, blocks(prompt, 64), session)


def test_it_begins_on_the_least_loaded_and_stays_for_any_load() -> None:
    policy = Session()
    assert send(policy, asked("s"), view("a", waiting=1), view("b")) == "b"
    assert send(policy, asked("s", prompt=2), view("a"), view("b", waiting=900)) == "b"
    assert send(policy, asked("t"), view("a"), view("b", waiting=900)) == "a"


def test_without_a_name_the_first_256_tokens_are_the_session() -> None:
    policy, opening = Session(), list(blocks(1, 16))
    first, later = (RouteRequest(1025, opening + list(blocks(n, 48))) for n in (2, 3))
    assert send(policy, first, view("a", waiting=1), view("b")) == "b"
    assert send(policy, later, view("a"), view("b", waiting=1)) == "b"
    assert send(policy, RouteRequest(1025, blocks(4, 64)), view("a"), view("b", waiting=1)) == "a"


def test_short_prompts_without_a_name_are_no_session() -> None:
    policy = Session()
    assert send(policy, RouteRequest(9, []), view("a", waiting=1), view("b")) == "b"
    assert send(policy, RouteRequest(9, []), view("a"), view("b", waiting=1)) == "a"
    assert len(policy) == 0


def test_it_begins_anew_when_its_replica_is_gone_or_after_two_hours() -> None:
    policy = Session()
    assert send(policy, asked("s"), view("a"), view("b", waiting=1)) == "a"
    assert send(policy, asked("s"), view("b", waiting=1), view("c", waiting=2), now=1.0) == "b"
    assert send(policy, asked("s"), view("a"), view("b", waiting=1), now=TTL_S) == "b"
    assert send(policy, asked("s"), view("a"), view("b", waiting=1), now=2 * TTL_S) == "a"


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "MAX_SESSIONS", 10)
    policy = Session()
    for number in range(50):
        send(policy, asked(f"s{number}"), view("a"))
        send(policy, asked("kept"), view("a"))
    assert len(policy) == 10
    assert send(policy, asked("kept"), view("a", waiting=1), view("b")) == "a"
    assert send(policy, asked("s1"), view("a", waiting=1), view("b")) == "b"
