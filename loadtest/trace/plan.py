"""From a trace to what is sent when: open loop (by the clock) or closed (sessions wait for their answers). Pure.

The same plan is played against a running fleet and in simulation.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from loadtest.simulate.prompts import Row
from loadtest.trace.errors import TraceError
from loadtest.trace.file import Line, Times, TraceFile, coarser
from loadtest.trace.flags import Loop
from replica.protocol.hashing import BLOCK_SIZE

DECODE_S = 0.02
"""Taken for a real token's time where a trace doesn't tell how long answers took."""
THINK_S = (1.0, 4.0)
"""Where a trace has no times: each pause is the first, and an exponential of the second."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    loop: Loop | None = None
    """None: open where the trace has times of arrival."""
    rate_scale: float = 1.0
    """Arrivals, of requests or of sessions, at so many times the trace's rate. Pauses within sessions stay."""
    session_period_s: float = 6.0
    """Mean time between the beginnings of sessions (Poisson), where the trace doesn't have them."""
    seed: int = 0
    """0 leaves requests that come at once in the trace's order; others shuffle them."""
    limit: int | None = None
    """Requests at most."""
    spread_s: float = 0.0
    """Each arrival comes later by a chance part of so much: for traces whose clock ticks so slowly that requests of
    seconds come at once. Before the rate is scaled."""


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    loop: Loop
    block: int
    """Tokens in a block of `rows`."""
    rows: list[Row]
    successors: list[int]
    """The next request of the same session; -1: none."""
    left_out: int = 0
    """Requests that the model's context is too short for, and those that wait for them."""


def make_plan(trace: TraceFile, options: PlanOptions) -> Plan:
    """Raises TraceError."""
    loop = options.loop or (Loop.OPEN if trace.times is Times.ARRIVALS else Loop.CLOSED)
    if loop is Loop.OPEN and trace.times is Times.NONE:
        raise TraceError("--loop: this trace has no times; its sessions can only be played in a closed loop")
    if loop is Loop.CLOSED and not any(line.session for line in trace.lines):
        raise TraceError("--loop: this trace has no sessions; it can only be played in an open loop")
    randomness = random.Random(options.seed)
    sessions = _begun(_sessions(trace), trace, options, randomness)
    if loop is Loop.OPEN:
        timed = [
            (begin + (line.at_s + randomness.uniform(0, options.spread_s)) / options.rate_scale, line)
            for begin, session in sessions
            for line in session
        ]
        if options.seed:
            randomness.shuffle(timed)
        timed.sort(key=lambda item: item[0])
        rows = [Row(at, line.tokens, line.blocks, line.output) for at, line in timed[: options.limit]]
        return Plan(trace.name, loop, trace.block, rows, _successors([line.session for _, line in timed[: len(rows)]]))
    return _closed(trace, sessions, options, randomness)


def _closed(
    trace: TraceFile, sessions: list[tuple[float, list[Line]]], options: PlanOptions, randomness: random.Random
) -> Plan:
    rows: list[Row] = []
    successors: list[int] = []
    for begin, session in sessions:
        for turn, (line, pause) in enumerate(zip(session, _pauses(session, trace.times, randomness), strict=True)):
            if options.limit is not None and len(rows) >= options.limit:
                break
            row = Row(begin, line.tokens, line.blocks, line.output)
            if turn:
                row = replace(row, at_s=pause, after=len(rows) - 1)
                successors[-1] = len(rows)
            rows.append(row)
            successors.append(-1)
    return Plan(trace.name, Loop.CLOSED, trace.block, rows, successors)


def fitting(plan: Plan, max_context: int) -> Plan:
    """Without what a model of that context can't take."""
    place: dict[int, int] = {-1: -1}
    rows: list[Row] = []
    for number, row in enumerate(plan.rows):
        if row.tokens + row.output <= max_context and row.after in place:
            place[number] = len(rows)
            rows.append(replace(row, after=place[row.after]))
    successors = [place.get(plan.successors[number], -1) for number in place if number >= 0]
    return replace(plan, rows=rows, successors=successors, left_out=len(plan.rows) - len(rows))


def session_names(plan: Plan) -> list[str]:
    """Of each row; empty for one that is alone."""
    first = list(range(len(plan.rows)))
    for number, successor in enumerate(plan.successors):
        if successor >= 0:
            first[successor] = first[number]
    sizes = Counter(first)
    return [f"s{number}" if sizes[number] > 1 else "" for number in first]


def fine_rows(plan: Plan) -> list[Row]:
    """With ids of blocks of 16 tokens."""
    parts = plan.block // BLOCK_SIZE
    if parts == 1:
        return plan.rows
    return [replace(row, blocks=_split(row, parts)) for row in plan.rows]


def coarse_rows(plan: Plan) -> tuple[list[Row], int]:
    """With ids of blocks of 16 tokens that each stand for so many real ones, as the simulator has it."""
    factor = plan.block // BLOCK_SIZE
    rows = [
        replace(row, tokens=coarser(row.tokens, len(row.blocks), plan.block, factor)) if factor > 1 else row
        for row in plan.rows
    ]
    return rows, factor


def _split(row: Row, parts: int) -> list[int]:
    whole = [block * parts + part for block in row.blocks for part in range(parts)]
    return whole[: -(-row.tokens // BLOCK_SIZE)]


def _sessions(trace: TraceFile) -> list[list[Line]]:
    """A line without a session is one by itself."""
    found: dict[str, list[Line]] = {}
    for number, line in enumerate(trace.lines):
        found.setdefault(line.session or f"#{number}", []).append(line)
    return list(found.values())


def _begun(
    sessions: list[list[Line]], trace: TraceFile, options: PlanOptions, randomness: random.Random
) -> list[tuple[float, list[Line]]]:
    """When each begins; for `Times.ARRIVALS` in an open loop that is in the lines."""
    if trace.times is Times.ARRIVALS:
        closed = options.loop is Loop.CLOSED
        return [
            (
                (session[0].at_s + randomness.uniform(0, options.spread_s)) / options.rate_scale if closed else 0.0,
                session,
            )
            for session in sessions
        ]
    order = list(sessions)
    randomness.shuffle(order)
    begin = 0.0
    begun = []
    for session in order:
        begin += randomness.expovariate(options.rate_scale / options.session_period_s)
        begun.append((begin, session))
    return begun


def _pauses(session: Sequence[Line], times: Times, randomness: random.Random) -> list[float]:
    """Before each request, from the answer before it."""
    if times is Times.NONE:
        fixed, mean = THINK_S
        return [fixed + randomness.expovariate(1 / mean) for _ in session]
    return [0.0] + [max(0.0, after.at_s - before.at_s - _answer_s(before)) for before, after in pairwise(session)]


def _answer_s(line: Line) -> float:
    return DECODE_S * line.output if line.duration_s is None else line.duration_s


def _successors(sessions: Sequence[str]) -> list[int]:
    last: dict[str, int] = {}
    successors = [-1] * len(sessions)
    for number, session in enumerate(sessions):
        if session:
            if session in last:
                successors[last[session]] = number
            last[session] = number
    return successors
