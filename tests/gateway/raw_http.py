"""HTTP by hand, for what no client library sends."""

import asyncio
import contextlib
from dataclasses import dataclass

import orjson


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, object]:
        """Of an answer that isn't 2xx: asserts that it has OpenAI's shape."""
        assert self.headers["content-type"].startswith("application/json"), self
        error = orjson.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"], error
        return dict(error)


class Connection:
    """One connection to a server, as a context manager."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._host, self._port = host, int(port)
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> "Connection":
        self.reader, self.writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):  # The server may have reset it.
            await self.writer.wait_closed()

    async def ask(self, data: bytes, timeout_s: float = 10) -> Answer:
        """Raises IncompleteReadError where the server closes without an answer."""
        self.writer.write(data)
        async with asyncio.timeout(timeout_s):
            return await self.answer()

    async def answer(self) -> Answer:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("transfer-encoding") == "chunked":
            body = await self._chunked()
        else:
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Answer(int(first.split()[1]), headers, body)

    async def _chunked(self) -> bytes:
        body = b""
        while size := int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readuntil(b"\r\n")
        return body

    @property
    def is_closed(self) -> bool:
        return self.reader.at_eof()


def post(path: str, body: bytes, *headers: str, kind: str | None = "application/json") -> bytes:
    """With a length, unless the headers say otherwise."""
    lines = ["host: x", *([f"content-type: {kind}"] if kind else []), *headers]
    names = {line.split(":")[0].lower() for line in lines}
    if not names & {"content-length", "transfer-encoding"}:
        lines.append(f"content-length: {len(body)}")
    head = "".join(f"{line}\r\n" for line in [f"POST {path} HTTP/1.1", *lines])
    return head.encode() + b"\r\n" + body


def chunked(data: bytes, size: int = 65_536) -> bytes:
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
