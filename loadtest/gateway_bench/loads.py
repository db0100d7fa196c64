"""What proxies are measured under, and the prompts."""

from dataclasses import dataclass
from random import Random

import orjson

_TEXT = "Is there a step-free way from the station to the hotel, and how wide is the lift? He said: “About 90 cm.” \n"
MODEL = "mock"


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    about: str
    prompt_bytes: int
    connections: int
    chunks: int = 0
    """Of each answer; 0: not streamed."""
    gap_s: float = 0.0
    """Between two chunks."""

    @property
    def body(self) -> str:
        return body_of(prompt(self.prompt_bytes), stream=self.chunks > 0)

    @property
    def stagger_s(self) -> float:
        """So that streams don't all tick together."""
        return self.gap_s / self.connections


LOADS = {
    load.name: load
    for load in (
        Load("requests_1k", "1 KB chat body, 32 connections", 1024, 32),
        Load("requests_8k", "8 KB chat body, 32 connections", 8192, 32),
        Load("chunks", "64 streams of 64 chunks, no gap", 1024, 64, chunks=64),
        Load("ttft_64", "64 streams of 64 chunks, 10 ms apart", 1024, 64, chunks=64, gap_s=0.01),
        Load("ttft_1", "one stream at a time of 4 chunks, 10 ms apart", 1024, 1, chunks=4, gap_s=0.01),
    )
}


def prompt(size: int) -> str:
    return (_TEXT * (size // len(_TEXT) + 1))[:size]


def body_of(text: str, *, stream: bool) -> str:
    fields = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 64, "temperature": 0.7}
    return orjson.dumps(fields | ({"stream": True} if stream else {})).decode()


def distinct_bodies(count: int, size: int, rng: Random) -> list[str]:
    """Of prompts that share nothing: hexadecimal digits, as dense in tokens as text gets."""
    return [body_of(rng.randbytes(size // 2).hex(), stream=False) for _ in range(count)]
