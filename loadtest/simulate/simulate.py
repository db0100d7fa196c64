"""Several policies over several seeds of one workload, and what comes of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from gateway.routing.registry import POLICIES
from loadtest.gateway_api import ReplicaShape
from loadtest.simulate.catalogue import find_kind
from loadtest.simulate.errors import SimulateError
from loadtest.simulate.like import order_like, profile_like
from loadtest.simulate.limits import Arrival, limits
from loadtest.simulate.recorded import trace_kind
from loadtest.simulate.results import Figures, spread, summarise
from loadtest.simulate.run import FleetShape, Outcome, Simulation
from loadtest.simulate.workload import Kind, Setting, Workload
from loadtest.trace.plan import PlanOptions
from replica.cache.manager import CacheManager, KVCache
from replica.cache.naive import NaiveCache
from replica.config import Order
from replica.profiles import Profile, UnknownProfile, find_profile

CACHES: dict[str, Callable[[int], KVCache]] = {
    "lru": CacheManager,
    "learned": partial(CacheManager, eviction="learned"),
    "none": NaiveCache,
}
"""By how they evict."""


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """None: what the workload was thought for."""

    workload: str
    policies: tuple[str, ...] = ("round_robin", "least_tokens", "ttft")
    seeds: int = 3
    replicas: int | None = None
    gateways: int = 1
    rate_scale: float | None = None
    profile: str | None = None
    kv_tokens: int | None = None
    speeds: tuple[float, ...] = (1.0,)
    failures: tuple[tuple[int, float], ...] = ()
    back_after: float = float("inf")
    digest_delay: float = 0.025
    latency: float = 0.001
    order: Order | None = None
    """None: as the running fleet has it, or the shortest prompt first; by arrival where `prefill_only`."""
    eviction: str = "lru"
    prefill_only: bool = False
    """Each answer is one token, and replicas take one prompt at a time, in one step."""
    limit: int | None = None
    traces: Path | None = None
    trace: Path | None = None
    """A trace file, instead of a workload by name."""
    scale: int = 1
    """Divides the trace's lengths."""
    plan: PlanOptions = field(default_factory=PlanOptions)
    """How to play the trace; its rate, seed and limit are those above."""
    like: tuple[ReplicaShape, ...] = ()
    """Replicas of a running fleet, to be simulated unless a profile is named."""

    @property
    def workload_name(self) -> str:
        return self.workload if self.trace is None else self.trace.stem


@dataclass(slots=True)
class PolicyResult:
    policy: str
    runs: list[Figures] = field(default_factory=list)
    """One a seed."""

    def as_dict(self) -> dict[str, Any]:
        return {"spread": spread(self.runs), "runs": [run.as_dict() for run in self.runs]}


@dataclass(slots=True)
class SimulateResult:
    options: SimulateOptions
    shape: FleetShape
    rate_scale: float
    policies: list[PolicyResult]
    limits: dict[str, float | None] = field(default_factory=dict)
    """See limits.py. Of the first run: where sessions wait for their answers, arrivals are that run's own."""
    wall_s: float = 0.0


def simulate(options: SimulateOptions, progress: Callable[[str], None] = lambda line: None) -> SimulateResult:
    """Raises SimulateError."""
    began = time.perf_counter()
    kind = _kind(options)
    shape = fleet_shape(options, kind)
    if not options.policies:
        raise SimulateError("--policies: there is none")
    for policy in options.policies:
        if policy not in POLICIES:
            raise SimulateError(f"--policies: unknown policy {policy!r}; there are {', '.join(sorted(POLICIES))}")
    rate_scale = rate_scale_of(options, kind)
    result = SimulateResult(options, shape, rate_scale, [PolicyResult(policy) for policy in options.policies])
    for seed in range(options.seeds):
        workload = make_workload(options, kind, shape, rate_scale, seed)
        for of_policy in result.policies:
            outcome = Simulation(workload, shape, of_policy.policy, seed).run()
            figures = summarise(workload, outcome)
            result.limits = result.limits or limits_of(outcome)
            of_policy.runs.append(figures)
            progress(
                f"{options.workload_name} seed {seed} {of_policy.policy}: mean TTFT {figures.ttft_mean_s or 0:.3f} s"
            )
    result.wall_s = time.perf_counter() - began
    return result


def _kind(options: SimulateOptions) -> Kind:
    if options.trace is None:
        return find_kind(options.workload)
    return trace_kind(options.trace, options.scale, options.plan)


def rate_scale_of(options: SimulateOptions, kind: Kind) -> float:
    if options.rate_scale is not None:
        return options.rate_scale
    return kind.prefill_only_rate_scale if options.prefill_only else kind.rate_scale


def limits_of(outcome: Outcome) -> dict[str, float | None]:
    blocks = sum(replica.cache.num_pages for replica in outcome.replicas)
    arrivals = [Arrival(call.at, call.request) for call in outcome.calls]
    return limits(arrivals, blocks, [replica.profile.cost for replica in outcome.replicas])


def make_workload(options: SimulateOptions, kind: Kind, shape: FleetShape, rate_scale: float, seed: int) -> Workload:
    workload = kind.make(
        Setting(seed, rate_scale, shape.replicas, shape.profile.kv_tokens, options.traces, options.limit)
    )
    longest = max((request.tokens * workload.stride + request.output for request in workload.requests), default=0)
    if longest > shape.profile.kv_tokens:
        raise SimulateError(f"--kv-tokens: {shape.profile.kv_tokens} are too few for a request of {longest}")
    if options.prefill_only:
        return replace(workload, requests=[request.without_answer() for request in workload.requests])
    return workload


def fleet_shape(options: SimulateOptions, kind: Kind) -> FleetShape:
    """Raises SimulateError."""
    replicas = options.replicas or len(options.like) or kind.replicas
    if options.eviction not in CACHES:
        raise SimulateError(f"--eviction: {options.eviction!r} is none of {', '.join(sorted(CACHES))}")
    for number, _ in options.failures:
        if not 0 <= number < replicas:
            raise SimulateError(f"--fail: there is no replica {number} among {replicas}")
    profiles = tuple(_adapted(options, kind, profile) for profile in _profiles(options, kind))
    return FleetShape(
        profile=profiles[0],
        profiles=profiles,
        replicas=replicas,
        gateways=options.gateways,
        speeds=options.speeds,
        failures=options.failures,
        back_after=options.back_after,
        digest_delay=options.digest_delay,
        latency=options.latency,
        order=options.order or (Order.FCFS if options.prefill_only else order_like(options.like)),
        make_cache=CACHES[options.eviction],
    )


def _profiles(options: SimulateOptions, kind: Kind) -> list[Profile]:
    if options.like and options.profile is None:
        return [profile_like(replica) for replica in options.like]
    try:
        return [find_profile(options.profile or kind.profile)]
    except UnknownProfile as error:
        raise SimulateError(f"--profile: {error}") from error


def _adapted(options: SimulateOptions, kind: Kind, profile: Profile) -> Profile:
    profile = replace(profile, kv_tokens=options.kv_tokens or kind.kv_tokens or profile.kv_tokens)
    if options.prefill_only:
        profile = replace(profile, max_running=1, max_step_tokens=1 << 30)
    return profile
