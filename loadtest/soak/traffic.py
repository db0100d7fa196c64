"""Clients of a soak: streams and whole answers, shared beginnings, and some who leave, at every moment."""

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine
from random import Random
from typing import Any

import aiohttp
import orjson

from loadtest.travel_text import CITIES, guidelines, hotel_notes, question

OUTPUT_TOKENS = 24
LEAVING_SHARE = 0.15
LEAVE_WITHIN_S = 1.0
"""Before headers, between headers and the first token, or within the stream."""
_ANSWER_LIMIT_S = 60.0
_CITIES = 40


class Traffic:
    def __init__(self, session: aiohttp.ClientSession, url: str, model: str, seed: int) -> None:
        self._session = session
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._rng = Random(seed)
        self._system = " ".join(_take(guidelines(self._rng), 12))
        self._cities = [CITIES[number % len(CITIES)] for number in range(_CITIES)]
        self._notes = [" ".join(_take(hotel_notes(self._rng, city), 12)) for city in self._cities]
        self.ends: Counter[str] = Counter()
        """answered, left, broken, failed; and failures by what they were."""
        self.why: Counter[str] = Counter()
        self._live: set[asyncio.Task[None]] = set()

    async def closed_loop(self, clients: int, seconds: float) -> float:
        """Nobody leaves. Answers a second."""
        deadline = time.monotonic() + seconds

        async def client() -> None:
            while time.monotonic() < deadline:
                await self._ask(None)

        before = self.ends["answered"]
        await asyncio.gather(*(client() for _ in range(clients)))
        return (self.ends["answered"] - before) / seconds

    async def open_loop(self, rate_per_s: float, seconds: float) -> None:
        """Poisson arrivals, whatever the server does."""
        due, end = time.monotonic(), time.monotonic() + seconds
        while (due := due + self._rng.expovariate(rate_per_s)) < end:
            await asyncio.sleep(due - time.monotonic())
            leaves = self._rng.random() < LEAVING_SHARE
            self._start(self._ask(self._rng.uniform(0, LEAVE_WITHIN_S) if leaves else None))
        await asyncio.gather(*self._live)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._live.add(task)
        task.add_done_callback(self._live.discard)

    async def _ask(self, leave_after_s: float | None) -> None:
        body, stream = self._body()
        try:
            async with asyncio.timeout(_ANSWER_LIMIT_S if leave_after_s is None else leave_after_s):
                end = await self._send(body, stream)
        except TimeoutError:
            end = "failed: no end" if leave_after_s is None else "left"
        except (aiohttp.ClientError, OSError) as error:
            end = f"failed: {type(error).__name__}"
        kind, _, why = end.partition(": ")
        self.ends[kind] += 1
        if why:
            self.why[why] += 1

    async def _send(self, body: bytes, stream: bool) -> str:
        async with self._session.post(self._url, data=body, headers={"Content-Type": "application/json"}) as answer:
            data = await answer.read()
        if answer.status != 200:
            return f"failed: status {answer.status}"
        if not stream:
            return "answered" if b'"choices"' in data else "failed: no choices"
        if b'"error"' in data:
            return "broken"
        return "answered" if data.endswith(b"data: [DONE]\n\n") else "failed: no [DONE]"

    def _body(self) -> tuple[bytes, bool]:
        place, stream = self._rng.randrange(_CITIES), self._rng.random() < 0.5
        user = f"{self._notes[place]}\n{question(self._rng, self._cities[place])}"
        fields = {
            "model": self._model,
            "messages": [{"role": "system", "content": self._system}, {"role": "user", "content": user}],
            "max_tokens": OUTPUT_TOKENS,
            "ignore_eos": True,
            "stream": stream,
        }
        return orjson.dumps(fields), stream


def _take(sentences: Any, count: int) -> list[str]:
    return [next(sentences) for _ in range(count)]
