from pathlib import Path

import pytest

from gateway.routing.registry import POLICIES
from loadtest.routing_bench.fingerprint import fingerprint, sources


def test_a_policy_depends_on_what_it_imports_at_any_remove_and_on_no_other_policy() -> None:
    found = set(sources("gateway.routing.ttft"))
    assert {"gateway.routing.ttft", "gateway.routing.candidates", "replica.protocol.hashing"} <= found
    assert "gateway.routing.lmetric" not in found and "gateway.fleet" not in found


def test_the_simulator_depends_on_no_policy_if_the_registry_is_left_out() -> None:
    policies = {make.__module__ for make in POLICIES.values()}
    found = set(sources("loadtest.simulate.simulate", {*policies, "gateway.routing.registry"}))
    assert {"replica.scheduler", "gateway.router", "loadtest.simulate.traces"} <= found
    assert not found & policies


def test_files_of_a_package_made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "loadtest_made_up"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text("from loadtest_made_up import two\nimport json\n")
    (package / "two.py").write_text("from loadtest_made_up.three import thing\n")
    (package / "three.py").write_text("thing = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("loadtest.routing_bench.fingerprint.OURS", ("loadtest_made_up",))
    names = {name.rpartition(".")[2] for name in sources("loadtest_made_up.one")}
    assert names == {"loadtest_made_up", "one", "two", "three"}
    without = sources("loadtest_made_up.one", ["loadtest_made_up.two"])
    assert {name.rpartition(".")[2] for name in without} == {"loadtest_made_up", "one"}


def test_a_fingerprint_is_of_what_files_say_in_any_order(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("a")
    two.write_text("b")
    before = fingerprint([one, two])
    assert before == fingerprint([two, one, one])
    two.write_text("c")
    assert fingerprint([one, two]) != before
