from itertools import pairwise

import pytest

from loadtest.trace.errors import TraceError
from loadtest.trace.file import Line, Times, TraceFile
from loadtest.trace.flags import Loop
from loadtest.trace.plan import Plan, PlanOptions, coarse_rows, fine_rows, fitting, make_plan, session_names


def line(at_s: float, session: str = "", block: int = 0, **more: float) -> Line:
    return Line(at_s, 20, 10, [block, block + 1], session, more.get("duration_s"))


def trace(times: Times, *lines: Line, block: int = 16) -> TraceFile:
    return TraceFile("t", times, block, list(lines))


ARRIVALS = trace(Times.ARRIVALS, line(0, "a"), line(1, "b"), line(4, "a", duration_s=9.0), line(5, "a"), line(6))


def test_an_open_loop_keeps_the_times() -> None:
    plan = make_plan(ARRIVALS, PlanOptions(rate_scale=2.0))
    assert plan.loop is Loop.OPEN
    assert [row.at_s for row in plan.rows] == [0, 0.5, 2, 2.5, 3] and all(row.after < 0 for row in plan.rows)
    assert plan.successors == [2, -1, 3, -1, -1]
    assert session_names(plan) == ["s0", "", "s0", "s0", ""]


@pytest.mark.parametrize("loop", Loop)
def test_a_slow_clock_is_made_up_for(seed: int, loop: Loop) -> None:
    ticks = trace(Times.ARRIVALS, *(line(3.0 * (number // 50), f"s{number}") for number in range(200)))
    rows = make_plan(ticks, PlanOptions(loop, rate_scale=0.5, seed=seed, spread_s=3.0)).rows
    times = sorted(row.at_s for row in rows)
    assert len(set(times)) == 200 and times[0] >= 0 and times[-1] <= 24
    assert max(after - before for before, after in pairwise(times)) < 3


def test_a_closed_loop_waits_for_answers() -> None:
    plan = make_plan(ARRIVALS, PlanOptions(Loop.CLOSED, rate_scale=2.0))
    rows = [(row.at_s, row.after) for row in plan.rows]
    # Session a first: at 0; then 4 s less 10 tokens of 20 ms; then 1 s, of which the answer took all.
    assert rows == [(0, -1), (pytest.approx(3.8), 0), (0.0, 1), (0.5, -1), (3.0, -1)]
    assert plan.successors == [1, 2, -1, -1, -1]


def test_sessions_begin_by_chance_where_nobody_knows_when(seed: int) -> None:
    lines = [line(float(turn), f"s{number}") for number in range(2000) for turn in range(2)]
    options = PlanOptions(Loop.CLOSED, session_period_s=3.0, seed=seed)
    rows = make_plan(trace(Times.IN_SESSION, *lines), options).rows
    begins = [row.at_s for row in rows if row.after < 0]
    assert begins == sorted(begins) and begins[-1] / len(begins) == pytest.approx(3.0, rel=0.15)
    opened = make_plan(trace(Times.IN_SESSION, *lines), PlanOptions(Loop.OPEN, seed=seed)).rows
    assert len(opened) == 4000 and [row.at_s for row in opened] == sorted(row.at_s for row in opened)


def test_the_same_seed_gives_the_same_plan() -> None:
    sessions = trace(Times.NONE, *(line(0, f"s{number}", 2 * number) for number in range(20)))
    assert make_plan(sessions, PlanOptions(seed=4)).rows == make_plan(sessions, PlanOptions(seed=4)).rows
    assert make_plan(sessions, PlanOptions(seed=4)).rows != make_plan(sessions, PlanOptions(seed=5)).rows


def test_what_a_trace_cannot_be_played_as() -> None:
    with pytest.raises(TraceError, match="no times"):
        make_plan(trace(Times.NONE, line(0, "a")), PlanOptions(Loop.OPEN))
    with pytest.raises(TraceError, match="no sessions"):
        make_plan(trace(Times.ARRIVALS, line(0)), PlanOptions(Loop.CLOSED))


@pytest.mark.parametrize("loop", Loop)
def test_a_limit_takes_the_first(loop: Loop) -> None:
    plan = make_plan(ARRIVALS, PlanOptions(loop, limit=2))
    assert len(plan.rows) == len(plan.successors) == 2 and max(plan.successors) < 2


def test_what_does_not_fit_is_left_out_with_what_waits_for_it() -> None:
    lines = [line(0, "a"), Line(1, 900, 10, [0] * 57, "a"), line(2, "a"), line(0, "b", 8), line(1, "b", 8)]
    plan = fitting(make_plan(trace(Times.IN_SESSION, *lines), PlanOptions()), 100)
    assert plan.left_out == 2 and len(plan.rows) == 3
    assert sorted(row.after for row in plan.rows)[:2] == [-1, -1]
    follower = next(number for number, row in enumerate(plan.rows) if row.after >= 0)
    assert plan.successors[plan.rows[follower].after] == follower


def test_blocks_of_any_size_become_sixteens() -> None:
    plan = Plan("t", Loop.OPEN, 64, make_plan(trace(Times.ARRIVALS, Line(0, 100, 5, [3, 9])), PlanOptions()).rows, [-1])
    assert fine_rows(plan)[0].blocks == [12, 13, 14, 15, 36, 37, 38]
    rows, stride = coarse_rows(plan)
    assert stride == 4 and rows[0].blocks == [3, 9] and rows[0].tokens == 25
