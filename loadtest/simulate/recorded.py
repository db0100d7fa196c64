"""A trace file as a workload: the plan that `ryokan replay` would play."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from loadtest.simulate.errors import SimulateError
from loadtest.simulate.prompts import later_extensions, make_requests
from loadtest.simulate.workload import Kind, Setting, Workload
from loadtest.trace.errors import TraceError
from loadtest.trace.file import TraceFile, read_trace
from loadtest.trace.plan import Plan, PlanOptions, coarse_rows, make_plan


def trace_kind(path: Path, scale: int, options: PlanOptions) -> Kind:
    """Read once, planned for each seed. Raises SimulateError."""
    try:
        trace = read_trace(path, scale)
        make_plan(trace, options)
    except TraceError as error:
        raise SimulateError(str(error)) from error
    return Kind(partial(_make, trace, options), f"the trace {path.name}")


def _make(trace: TraceFile, options: PlanOptions, setting: Setting) -> Workload:
    plan = make_plan(trace, replace(options, seed=setting.seed, rate_scale=setting.rate_scale, limit=setting.limit))
    return workload_of(plan, answers_found=True)


def workload_of(plan: Plan, answers_found: bool) -> Workload:
    """`answers_found`: whether the blocks of an answer are those that the conversation's next prompt has there. So it
    is in life; where made-up prompts are replayed, it isn't."""
    rows, stride = coarse_rows(plan)
    successors = [-1] * len(rows)
    if answers_found:
        known = any(successor >= 0 for successor in plan.successors)
        successors = plan.successors if known else later_extensions(rows)
    return Workload(plan.name, make_requests(rows, successors, stride), stride)
