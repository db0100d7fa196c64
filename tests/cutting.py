"""A proxy before a replica that cuts a stream off where it is told to, as a crash would."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

BEFORE_HEADERS = -1


@dataclass
class Knife:
    """One for a whole fleet: the next answer is cut, whichever replica gives it."""

    places: list[int | bytes] = field(default_factory=list)
    """Of the next answer, of the one after it, ...: after so many events, or BEFORE_HEADERS, or before these bytes."""
    extra: int = 0
    """Bytes after it that still go out."""
    cut: list[int] = field(default_factory=list)
    """Ports of the replicas that were, in order."""

    def take(self) -> "tuple[int | bytes, int] | None":
        return (self.places.pop(0), self.extra) if self.places else None


@asynccontextmanager
async def cutting_proxy(port: int, upstream_port: int, knife: Knife) -> AsyncIterator[None]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", upstream_port)
        cuts: list[tuple[int | bytes, int]] = []

        def abort() -> None:
            knife.cut.append(port)
            writer.transport.abort()
            upstream_writer.transport.abort()

        async def requests() -> None:
            while data := await reader.read(1 << 16):
                if data.startswith(b"POST /v1/") and (plan := knife.take()) is not None:
                    if plan[0] == BEFORE_HEADERS:
                        abort()
                        return
                    cuts.append(plan)
                upstream_writer.write(data)
            upstream_writer.transport.abort()

        async def answers() -> None:
            seen = b""
            while data := await upstream_reader.read(1 << 16):
                if not cuts:
                    writer.write(data)
                    continue
                before = len(seen)
                seen += data
                end = _end(seen, cuts[0][0])
                if end is None or len(seen) < end + cuts[0][1]:
                    writer.write(data)
                    continue
                writer.write(data[: end + cuts[0][1] - before])
                await writer.drain()
                # What was written is to arrive: an abort would throw it away.
                await asyncio.sleep(0.02)
                abort()
                return
            writer.transport.abort()

        with contextlib.suppress(ConnectionError):
            await asyncio.gather(requests(), answers())
        writer.transport.abort()
        upstream_writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()


def _end(answer: bytes, place: int | bytes) -> int | None:
    """Where that many events have gone by, or those bytes are."""
    at = answer.find(b"\r\n\r\n") + 4
    if at < 4:
        return None
    if isinstance(place, bytes):
        at = answer.find(place, at)
        return None if at < 0 else at
    for _ in range(place):
        at = answer.find(b"\n\n", at) + 2
        if at < 2:
            return None
    return at
