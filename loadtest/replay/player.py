"""Plays a plan against a server: each request at its time, or so long after the answer that it waits for."""

import asyncio
from collections.abc import Callable, Sequence

from loadtest.client import CompletionClient, RequestRecord
from loadtest.replay.prompts import PromptMaker
from loadtest.simulate.prompts import Row

_SESSION_HEADER = "x-session-id"


async def play(
    client: CompletionClient,
    rows: Sequence[Row],
    sessions: Sequence[str],
    maker: PromptMaker,
    on_answer: Callable[[RequestRecord], None] = lambda record: None,
) -> list[RequestRecord]:
    """`rows` with blocks of 16 tokens, and the name of each one's session. A record's `agent` is the number of its row;
    one after a failed answer is never sent. Requests are timed from when they were due, so that a slow client or server
    can't hide it."""
    records: list[RequestRecord] = []
    followers: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        followers.setdefault(row.after, []).append(number)

    async def request(number: int, due_s: float) -> None:
        await asyncio.sleep(max(0.0, due_s - client.now()))
        row = rows[number]
        headers = {_SESSION_HEADER: sessions[number]} if sessions[number] else {}
        record = await client.send(maker.prompt(row.blocks, row.tokens), row.output, headers, due_s)
        record.agent = number
        record.text, record.chunk_times_s = "", []
        records.append(record)
        on_answer(record)
        for follower in followers.get(number, ()) if record.ok else ():
            group.create_task(request(follower, record.end_s + rows[follower].at_s))

    async with asyncio.TaskGroup() as group:
        start_s = client.now()
        for number in sorted(followers.get(-1, ()), key=lambda number: rows[number].at_s):
            due_s = start_s + rows[number].at_s
            await asyncio.sleep(max(0.0, due_s - client.now()))
            group.create_task(request(number, due_s))
    return records


async def probe_idle(
    client: CompletionClient, maker: PromptMaker, lengths: Sequence[int], first: int
) -> list[RequestRecord]:
    """One request after another, each with blocks (from `first` on) that nobody has: what an idle fleet takes."""
    records = []
    for tokens in lengths:
        blocks = range(first, first + -(-tokens // 16))
        first = blocks.stop
        records.append(await client.send(maker.prompt(blocks, tokens), 1))
    return records
