"""A whole fleet on one machine: an embedded Valkey, replicas and a gateway, each a process of its own."""

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from deploy.process import ManagedProcess, ProcessFailed, wait_ready
from replica.model.source import DEFAULT_MODEL

_VALKEY_TIMEOUT_S = 20.0
_REPLICA_TIMEOUT_S = 300.0
_GATEWAY_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 40.0
_POLL_S = 0.05
_STARTED_PER_CORE = 2
"""Replicas at a time. A process needs the most memory while it reads the model: of 64 timing ones 107 MB each, and 84
from then on."""
_KV_MEMORY_SHARE = 0.4
"""Of the available memory, for the KV blocks of all replicas together."""


@dataclass(frozen=True, slots=True)
class FleetOptions:
    model: Path
    """Its folder."""
    model_name: str
    replicas: int = 4
    policy: str = "ttft"
    host: str = "127.0.0.1"
    port: int = 8000
    redis_url: str | None = None
    """None: start the embedded server."""
    fleet: str = "default"
    weights: str = "int8"
    kv_memory_gib: float | None = None
    """A replica's. None: an equal part of two fifths of what is available, or what a GPU has room for."""
    fleet_key_file: Path | None = None
    """None: the key in the environment, or none."""
    timing_flags: Mapping[str, str] | None = None
    """Of replicas that compute nothing, as `ryokan replica` takes them; None: they compute the model."""
    record: Path | None = None
    """A trace of all requests goes there."""
    shadow_policy: str | None = None
    policy_file: Path | None = None
    """It names both policies, instead of those above."""
    cards: Sequence[str] = ()
    """What CUDA_VISIBLE_DEVICES is to be for each replica, in turn; empty: they compute on the CPU."""

    @property
    def threads_per_replica(self) -> int:
        return max(1, (os.cpu_count() or 1) // self.replicas)


class LocalFleet:
    """Owns the processes; `with run_fleet(...)` starts and stops them."""

    def __init__(self, options: FleetOptions, logs: Path, console: Console) -> None:
        self._options = options
        self._logs = logs
        self._console = console
        self._processes: list[ManagedProcess] = []
        self.redis_url = options.redis_url or ""
        self.gateway_url = ""

    @property
    def join_flags(self) -> str:
        """What a replica that joins by hand must say beyond the Redis URL."""
        options = self._options
        flags = f" --fleet {options.fleet}" if options.fleet != "default" else ""
        if options.fleet_key_file is not None:
            flags += f" --fleet-key-file {options.fleet_key_file}"
        flags += "".join(f" {name} {value}" for name, value in (options.timing_flags or {}).items())
        return flags + (f" --model {options.model}" if options.model_name != DEFAULT_MODEL else "")

    def start(self) -> None:
        """Raises ProcessFailed."""
        if not self.redis_url:
            with self._progress("starting the embedded Valkey"):
                command = [sys.executable, "-u", "-m", "deploy.valkey", str(self._logs / "valkey.sock")]
                valkey = self._spawn("valkey", command, r"ready on (\S+)")
                wait_ready([valkey], _VALKEY_TIMEOUT_S)
                self.redis_url = valkey.url
        how = "loading weights, warming up" if self._options.timing_flags is None else "they compute nothing"
        with self._progress(f"starting {self._options.replicas} replicas ({how})"):
            at_once = _STARTED_PER_CORE * (os.cpu_count() or 1)
            for first in range(0, self._options.replicas, at_once):
                wave = range(first, min(first + at_once, self._options.replicas))
                wait_ready([self._spawn_replica(index) for index in wave], _REPLICA_TIMEOUT_S)
        with self._progress("starting the gateway"):
            gateway = self._spawn_gateway()
            wait_ready([gateway], _GATEWAY_TIMEOUT_S)
            self.gateway_url = gateway.url
            self._wait_known(_GATEWAY_TIMEOUT_S)

    def stop(self) -> None:
        """The gateway first, so that what it has in flight still finds its replicas; Redis last. Interrupted once more,
        it waits for nobody."""
        with self._progress("stopping"):
            patience_s = _STOP_TIMEOUT_S
            for kind in ("gateway", "replica", "valkey"):
                stopping = [process for process in self._processes if process.name.startswith(kind)]
                for process in stopping:
                    process.ask_to_stop()
                for process in stopping:
                    try:
                        process.wait_stopped(patience_s)
                    except KeyboardInterrupt:
                        patience_s = 0.0
                        process.wait_stopped(patience_s)

    def check(self) -> None:
        """Raises ProcessFailed where Valkey or the gateway has died; a fleet that loses a replica goes on."""
        for process in self._processes:
            if not process.name.startswith("replica"):
                process.check()

    def _wait_known(self, timeout_s: float) -> None:
        """Until the gateway routes to all replicas. Raises ProcessFailed."""
        deadline = time.monotonic() + timeout_s
        while self._routable() < self._options.replicas:
            self.check()
            if time.monotonic() > deadline:
                raise ProcessFailed(f"the gateway knows only {self._routable()} of {self._options.replicas} replicas")
            time.sleep(_POLL_S)

    def _routable(self) -> int:
        try:
            with urllib.request.urlopen(f"{self.gateway_url}/ready", timeout=1) as response:
                return int(json.load(response)["synced"])
        except OSError:
            # Not ready, not answering, or closing the connection: all of urllib's failures are OSErrors.
            return 0

    def _spawn_replica(self, index: int) -> ManagedProcess:
        options = self._options
        # In a Redis of their own, replicas have plain names; in somebody else's those might be taken.
        name = {"--id": f"r{index}"} if options.redis_url is None else {}
        flags = name | {
            "--model": str(options.model),
            "--served-model-name": options.model_name,
            "--fleet": options.fleet,
        }
        flags |= self._key_flags
        flags |= self._torch_flags if options.timing_flags is None else options.timing_flags
        card = {"CUDA_VISIBLE_DEVICES": options.cards[index % len(options.cards)]} if options.cards else {}
        return self._spawn(f"replica-{index}", _command("replica", flags), r"replica \S+ ready on (http\S+)", card)

    @property
    def _torch_flags(self) -> dict[str, str]:
        options = self._options
        kv_memory_gib = options.kv_memory_gib
        if options.cards:
            memory = {} if kv_memory_gib is None else {"--kv-memory-gib": f"{kv_memory_gib:.3f}"}
            return {"--device": "cuda", **memory}
        if kv_memory_gib is None:
            from replica.config import available_memory_bytes

            kv_memory_gib = available_memory_bytes() * _KV_MEMORY_SHARE / options.replicas / 2**30
        return {
            "--device": "cpu",
            "--weights": options.weights,
            "--threads": str(options.threads_per_replica),
            "--kv-memory-gib": f"{kv_memory_gib:.3f}",
        }

    @property
    def _key_flags(self) -> dict[str, str]:
        file = self._options.fleet_key_file
        return {} if file is None else {"--fleet-key-file": str(file)}

    def _spawn_gateway(self) -> ManagedProcess:
        options = self._options
        flags = {
            "--model": str(options.model),
            "--served-model-name": options.model_name,
            "--fleet": options.fleet,
            "--policy": options.policy,
            "--host": options.host,
            "--port": str(options.port),
        }
        flags |= self._key_flags
        given = {
            "--record": options.record,
            "--shadow-policy": options.shadow_policy,
            "--policy-file": options.policy_file,
        }
        flags |= {name: str(value) for name, value in given.items() if value is not None}
        return self._spawn("gateway", _command("gateway", flags), r"gateway ready on (http\S+)")

    def _spawn(
        self, name: str, command: list[str], ready_line: str, more: Mapping[str, str] | None = None
    ) -> ManagedProcess:
        # Not among the arguments, which everybody on the machine can read.
        env = ({"RYOKAN_REDIS_URL": self.redis_url} if self.redis_url else {}) | dict(more or {})
        process = ManagedProcess(name, command, ready_line, self._logs / f"{name}.log", env)
        self._processes.append(process)
        return process

    @contextlib.contextmanager
    def _progress(self, what: str) -> Iterator[None]:
        if self._console.is_terminal:
            with self._console.status(f"{what} …"):
                yield
        else:
            self._console.print(f"{what} …", highlight=False)
            yield


@contextlib.contextmanager
def run_fleet(options: FleetOptions, console: Console) -> Iterator[LocalFleet]:
    """Started inside, stopped at the end, whatever happens; the logs are kept only where something failed. Every way of
    being told to stop is a KeyboardInterrupt. Raises ProcessFailed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Explicitly for SIGINT too: a shell starts background jobs with it ignored.
        signal.signal(number, signal.default_int_handler)
    logs = Path(tempfile.mkdtemp(prefix="ryokan-"))
    fleet = LocalFleet(options, logs, console)
    keep_logs = False
    try:
        fleet.start()
        yield fleet
    except ProcessFailed:
        keep_logs = True
        raise
    finally:
        fleet.stop()
        if keep_logs:
            console.print(f"logs are kept in {logs}", highlight=False)
        else:
            shutil.rmtree(logs, ignore_errors=True)


def _command(name: str, flags: dict[str, str]) -> list[str]:
    arguments = [part for flag in flags.items() for part in flag]
    return [sys.executable, "-u", "-m", "deploy.cli", name, *arguments]
