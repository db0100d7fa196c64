import sys
from pathlib import Path

from loadtest.peers.routers import Address, Fleet, installed, routers

FLEET = Fleet(("http://127.0.0.1:1", "http://127.0.0.1:2"), "m", Path("/models/m"), "redis://127.0.0.1:6379")


def fake_peer(home: Path, name: str, version: str) -> None:
    """A Python that knows a distribution of this name and version."""
    site = home / f"venv-{name}" / "site"
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    python = home / f"venv-{name}" / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)


def test_what_is_not_installed_says_how_to_install_it(tmp_path: Path) -> None:
    found, absent = routers(tmp_path)
    assert [(router.name, router.policy) for router in found] == [
        ("ryokan", "ttft"),
        ("ryokan:round_robin", "round_robin"),
    ]
    assert list(absent) == ["sglang-router", "smg", "vllm-router"]
    assert f"{tmp_path}/venv-smg/bin/pip install smg==1.13.0" in absent["smg"]


def test_a_peer_that_is_installed_takes_part_with_its_version(tmp_path: Path) -> None:
    fake_peer(tmp_path, "smg", "1.13.0")
    (tmp_path / "venv-vllm-router" / "bin").mkdir(parents=True)
    (tmp_path / "venv-vllm-router" / "bin" / "python").symlink_to(sys.executable)
    assert installed(tmp_path, "vllm-router") is None
    found, absent = routers(tmp_path, only=("smg", "vllm-router"))
    assert [router.name for router in found if not router.is_ours] == ["smg", "smg:round_robin"]
    assert {router.version for router in found if not router.is_ours} == {"1.13.0"}
    assert list(absent) == ["vllm-router"]


def test_peers_keep_their_defaults(tmp_path: Path) -> None:
    fake_peer(tmp_path, "smg", "1.13.0")
    (peer,) = (router for router in routers(tmp_path)[0] if router.name == "smg")
    line = " ".join(peer.command(FLEET, Address(7000, 7001)))
    assert line.startswith(f"{tmp_path}/venv-smg/bin/python -m smg.launch_router ")
    assert " --worker-urls http://127.0.0.1:1 http://127.0.0.1:2 --policy cache_aware " in line
    flags = [part for part in line.split() if part.startswith("--")]
    expected = ["--host", "--port", "--worker-urls", "--policy", "--prometheus-host", "--prometheus-port"]
    assert flags == [*expected, "--log-level"]


def test_ours_is_the_command_that_anybody_runs(tmp_path: Path) -> None:
    ours, baseline = routers(tmp_path)[0]
    command = ours.command(FLEET, Address(7000, 7001))
    assert command[:5] == [sys.executable, "-u", "-m", "deploy.cli", "gateway"]
    assert command[command.index("--policy") + 1] == "ttft" and FLEET.redis_url not in command
    assert baseline.is_baseline and "round_robin" in baseline.command(FLEET, Address(7000, 7001))
