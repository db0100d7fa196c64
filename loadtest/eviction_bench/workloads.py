"""What eviction policies are compared on: recorded traces, and shapes that are good or bad for one idea or another."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from loadtest.eviction_bench.traces import Request, recorded, sessions

Draw = Callable[[int], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    requests: list[Request]
    block_tokens: int
    caches: int
    pages: int
    """Of each cache; one holds a block of the trace."""


def workloads(traces: Path) -> list[Workload]:
    conversation = recorded(traces / "mooncake_conversation.jsonl")
    synthetic = recorded(traces / "mooncake_synthetic.jsonl")
    tau = sessions(traces / "taubench_airline_blk16.jsonl", 6, random.Random(0))
    swe = sessions(traces / "miniswe_blk16.jsonl", 20, random.Random(0))
    magentic = recorded(traces / "magentic_blk16.jsonl")
    return [
        Workload("conversation 8 x 307k", conversation, 512, 8, 307_328 // 512),
        Workload("conversation 8 x 1M", conversation, 512, 8, 1_000_000 // 512),
        Workload("synthetic 8 x 307k", synthetic, 512, 8, 307_328 // 512),
        Workload("synthetic 8 x 200k", synthetic, 512, 8, 200_000 // 512),
        Workload("tau-bench 4 x 16k", tau, 16, 4, 1024),
        Workload("tau-bench 4 x 8k", tau, 16, 4, 512),
        Workload("mini-swe 4 x 16k", swe, 16, 4, 1024),
        Workload("magentic 4 x 16k", magentic, 16, 4, 1024),
        Workload("magentic 4 x 4k", magentic, 16, 4, 256),
        *(questions(percent) for percent in (73, 110, 200)),
        Workload("zipf tenants", tenants(shuffle_half_way=False), 16, 4, 1000),
        Workload("zipf tenants, shuffled", tenants(shuffle_half_way=True), 16, 4, 1000),
        Workload("one giant prompt", giant(), 16, 4, 512),
        Workload("zero reuse", unique(), 16, 4, 512),
        Workload("loop over 1.2 caches", loop(), 16, 1, 1000),
        Workload("chats", chats(), 16, 1, 2000),
    ]


def questions(percent: int) -> Workload:
    """150 prefixes of 6,000 tokens, 5 questions of 1,200 about each, all asked three times: after llm-d's benchmark of
    precise routing. All that is distinct takes `percent` of the caches."""
    rng, draw = random.Random(1), _drawer()
    prefixes = [draw(75) for _ in range(150)]
    asked = [_of(prefix, draw(15), block_tokens=80) for prefix in prefixes for _ in range(5)]
    requests = [request for _ in range(3) for request in rng.sample(asked, len(asked))]
    return Workload(f"150 x 5 at {percent} %", requests, 80, 8, (150 * 75 + 750 * 15) * 100 // percent // 8)


def tenants(shuffle_half_way: bool) -> list[Request]:
    """500 system prompts of 8 to 64 blocks, asked for after Zipf's law, with 8 blocks of each request's own."""
    rng, draw = random.Random(3), _drawer()
    prompts = [draw(rng.choice((8, 16, 32, 64))) for _ in range(500)]
    weights = [1 / rank for rank in range(1, 501)]
    requests = []
    for number in range(6000):
        if shuffle_half_way and number == 3000:
            rng.shuffle(prompts)
        requests.append(_of(rng.choices(prompts, weights)[0], draw(8)))
    return requests


def giant() -> list[Request]:
    rng, draw = random.Random(4), _drawer()
    prompt = draw(300)
    return [_of(prompt, draw(rng.randrange(5, 40))) for _ in range(2000)]


def unique() -> list[Request]:
    rng, draw = random.Random(5), _drawer()
    return [_of(draw(rng.randrange(5, 80))) for _ in range(3000)]


def loop() -> list[Request]:
    """The worst for LRU."""
    draw = _drawer()
    return [_of(draw(20)) for _ in range(60)] * 40


def chats() -> list[Request]:
    """40 at a time, any of which goes on next, and ends after 8 turns on average: fit for LRU."""
    rng, draw = random.Random(6), _drawer()
    live: list[tuple[int, ...]] = []
    requests = []
    for _ in range(6000):
        if len(live) < 40:
            live.append(draw(20))
        chat = rng.randrange(len(live))
        live[chat] += draw(6)
        requests.append(_of(live[chat]))
        if rng.random() < 1 / 8:
            live.pop(chat)
    return requests


def _drawer() -> Draw:
    ids = count()
    return lambda blocks: tuple(next(ids) for _ in range(blocks))


def _of(*parts: tuple[int, ...], block_tokens: int = 16) -> Request:
    blocks = tuple(block for part in parts for block in part)
    return Request(blocks, len(blocks) * block_tokens)
