"""The routers under test, by their command lines. Peers live in virtual environments of their own, and keep their
defaults: no flag here but addresses, ports, the policy and the log level."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

VERSIONS = {"sglang-router": "0.3.2", "smg": "1.13.0", "vllm-router": "0.1.17"}
"""Packages, and the versions that the results in peers.md are of."""
OURS = "ryokan"
BASELINE = "round_robin"
_VERSION_LIMIT_S = 60


@dataclass(frozen=True, slots=True)
class Address:
    port: int
    metrics_port: int
    """Peers serve their metrics on a port of their own."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What a router has to know of the replicas."""

    urls: tuple[str, ...]
    model: str
    folder: Path
    redis_url: str


Command = Callable[[Fleet, Address], list[str]]


@dataclass(frozen=True, slots=True)
class Router:
    name: str
    """`product`, or `product:policy` for another policy than its best."""
    policy: str
    command: Command
    version: str
    is_ours: bool = False

    @property
    def is_baseline(self) -> bool:
        return self.policy == BASELINE


def routers(home: Path, only: Sequence[str] = ()) -> tuple[list[Router], dict[str, str]]:
    """Those that are installed, each with its own policy and with round robin, ours first; and why others aren't."""
    found: list[Router] = []
    absent: dict[str, str] = {}
    products = [OURS, *(name for name in VERSIONS if not only or name in only)]
    for name in products:
        if name == OURS:
            version: str | None = "this tree"
        elif (version := installed(home, name)) is None:
            absent[name] = f"not installed: {install_command(home, name)}"
            continue
        for policy in ("ttft" if name == OURS else "cache_aware", BASELINE):
            label = name if policy != BASELINE else f"{name}:{BASELINE}"
            found.append(Router(label, policy, command_of(name, policy, home), version or "", name == OURS))
    return found, absent


def install_command(home: Path, name: str) -> str:
    venv = home / f"venv-{name}"
    return f"python3.11 -m venv {venv} && {venv}/bin/pip install {name}=={VERSIONS[name]}"


def installed(home: Path, name: str) -> str | None:
    """The version, or None."""
    python = home / f"venv-{name}" / "bin" / "python"
    if not python.exists():
        return None
    code = f"from importlib.metadata import version; print(version({name!r}))"
    try:
        done = subprocess.run(
            [str(python), "-c", code], capture_output=True, text=True, timeout=_VERSION_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def command_of(name: str, policy: str, home: Path) -> Command:
    if name == OURS:
        return lambda fleet, address: _ours(policy, fleet, address)
    folder = home / f"venv-{name}" / "bin"
    program = {
        "sglang-router": [str(folder / "python"), "-m", "sglang_router.launch_router"],
        "smg": [str(folder / "python"), "-m", "smg.launch_router"],
        "vllm-router": [str(folder / "vllm-router")],
    }[name]
    level = "warning" if name == "vllm-router" else "warn"
    return lambda fleet, address: [*program, *_peer_flags(policy, level, fleet, address)]


def _peer_flags(policy: str, level: str, fleet: Fleet, address: Address) -> list[str]:
    flags = ["--host", "127.0.0.1", "--port", str(address.port), "--worker-urls", *fleet.urls, "--policy", policy]
    flags += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(address.metrics_port)]
    return [*flags, "--log-level", level]


def _ours(policy: str, fleet: Fleet, address: Address) -> list[str]:
    flags = ["--host", "127.0.0.1", "--port", str(address.port), "--policy", policy]
    flags += ["--model", str(fleet.folder), "--served-model-name", fleet.model]
    return [sys.executable, "-u", "-m", "deploy.cli", "gateway", *flags]
