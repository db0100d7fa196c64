from pathlib import Path

import pytest

from gateway.fleet import Beat, Fleet
from gateway.index.plain_index import PlainIndex
from gateway.router import Router
from gateway.routing.base import RouteRequest
from gateway.routing.native.library import TABLE, TTFT_TERMS, the_library
from gateway.routing.registry import make_policy
from tests.gateway.fakes import IDENTITY, blocks, heartbeat


def test_names_are_told_apart() -> None:
    assert len(set(TABLE)) == len(TABLE)
    assert len(set(TTFT_TERMS)) == len(TTFT_TERMS)


def test_without_a_compiler_decisions_are_made_in_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RYOKAN_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "missing"))
    the_library.cache_clear()
    try:
        fleet = Fleet(IDENTITY)
        assert the_library() is None
    finally:
        the_library.cache_clear()
    assert "decisions run in numpy" in caplog.text
    fleet.update({name: Beat(heartbeat(name)) for name in "ab"}, 0.0)
    router = Router(fleet, PlainIndex(), make_policy("ttft"))
    decision = router.route(RouteRequest(1025, blocks(1, 64)), 1100, set(), 0.0)
    assert decision is not None and decision.choice in "ab"
    assert isinstance(decision.columns, dict)
