"""The other workers of this gateway (`--workers N`), each behind a socket file in a folder for its user alone.

A connection reaches one worker, whichever the kernel picks; what an operator asks is meant for the gateway. So a
worker that is asked for metrics adds the others', one that doesn't know a request asks the others, and one that is told
to change tells the others.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

log = logging.getLogger(__name__)

TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Siblings:
    sockets: tuple[Path, ...] = ()
    """Of all workers, by number; none where there is one worker."""
    number: int = 0

    @property
    def own(self) -> Path | None:
        return self.sockets[self.number] if self.sockets else None

    @property
    def ledgers(self) -> tuple[Path, ...]:
        """Datagram sockets on which workers tell each other what their callers use; see tenants/share.py."""
        return tuple(path.with_suffix(".ledger") for path in self.sockets)

    async def ask(self, method: str, path: str, body: bytes = b"") -> dict[int, Reply | None]:
        """All others at once, by number; None for one that doesn't answer: it is just being begun anew, or stands
        still."""
        others = [number for number in range(len(self.sockets)) if number != self.number]
        replies = await asyncio.gather(*(self._ask(number, method, path, body) for number in others))
        return dict(zip(others, replies, strict=True))

    async def _ask(self, number: int, method: str, path: str, body: bytes) -> Reply | None:
        connector = aiohttp.UnixConnector(path=str(self.sockets[number]))
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession("http://worker", connector=connector, timeout=timeout) as session,
                session.request(method, path, data=body) as response,
            ):
                return Reply(response.status, await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.warning("worker %d doesn't answer %s %s: %s", number, method, path, str(error) or type(error).__name__)
            return None


NO_SIBLINGS = Siblings()
SIBLINGS = web.AppKey("SIBLINGS", Siblings)


def from_sibling(request: web.Request) -> bool:
    """It has come through the folder: another worker asks, and has looked at the operator's key."""
    transport = request.transport
    return transport is not None and isinstance(transport.get_extra_info("sockname"), str | bytes)


def merged_metrics(expositions: Sequence[tuple[int, str]]) -> str:
    """Several workers' metrics in Prometheus' text format as one, each sample with its `worker`."""
    families: dict[str, list[str]] = {}
    for number, text in expositions:
        samples: list[str] = []
        heading = ""
        for line in text.splitlines():
            if line.startswith("# HELP "):
                heading = line
            elif line.startswith("# TYPE "):
                samples = families.setdefault(f"{heading}\n{line}", [])
            elif line:
                samples.append(_labelled(line, number))
    return "".join(f"{heading}\n" + "".join(f"{sample}\n" for sample in of) for heading, of in families.items())


def _labelled(sample: str, number: int) -> str:
    # The name ends at the first brace or space: neither can be in it.
    name, brace, rest = sample.partition("{")
    if brace:
        return f'{name}{{worker="{number}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{worker="{number}"}} {value}'
