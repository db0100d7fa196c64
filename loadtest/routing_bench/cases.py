"""What policies are compared on: recorded and made-up workloads, each at loads around its knee, on fleets that fit."""

from dataclasses import dataclass, replace

from loadtest.simulate.simulate import SimulateOptions
from loadtest.simulate.traces import TRACES
from replica.config import Order


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    options: SimulateOptions
    """But for policies, seeds and the traces' folder."""
    with_limits: bool = False

    @property
    def is_recorded(self) -> bool:
        return self.options.workload in TRACES


def cases() -> list[Case]:
    """For the ratio tables. Those named `prefill` are the setting of published replays: one token out, one prompt at a
    time, by arrival."""
    return [*_mooncake(), *_agents(), *_shapes(), *_uneven(), *_restarts(), *_controls()]


def gateway_cases() -> list[tuple[Case, Case]]:
    """Workloads with reuse on 16 replicas, through one gateway and through several."""
    plain = [
        Case("conversation", SimulateOptions("conversation", rate_scale=3.0, limit=4000)),
        Case("synthetic", SimulateOptions("synthetic", rate_scale=2.0, limit=3000)),
        Case("taubench", SimulateOptions("taubench", rate_scale=4.0, limit=2000)),
        *(Case(name, SimulateOptions(name, limit=3000)) for name in ("prefixes-73", "prefixes-110", "tenants")),
    ]
    return [(_through(1, case), _through(4, case)) for case in plain]


def _through(gateways: int, case: Case) -> Case:
    return Case(f"{case.name} 16x, {gateways} gw", replace(case.options, replicas=16, gateways=gateways))


def _mooncake() -> list[Case]:
    conversation = SimulateOptions("conversation", limit=2500)
    million = replace(conversation, kv_tokens=1_000_000)
    synthetic = SimulateOptions("synthetic", limit=2000)
    return [
        Case("conversation 307k prefill x3", replace(conversation, prefill_only=True)),
        Case("conversation 1M prefill x3", replace(million, prefill_only=True), with_limits=True),
        Case("synthetic 307k prefill x2", replace(synthetic, prefill_only=True)),
        *(Case(f"conversation 307k x{rate:g}", replace(conversation, rate_scale=rate)) for rate in (1.0, 1.5, 2.0)),
        *(Case(f"conversation 1M x{rate:g}", replace(million, rate_scale=rate)) for rate in (1.0, 1.5, 2.0)),
        *(Case(f"synthetic 307k x{rate:g}", replace(synthetic, rate_scale=rate)) for rate in (0.7, 1.0, 1.4)),
    ]


def _agents() -> list[Case]:
    tau = SimulateOptions("taubench", limit=1200)
    prefill = replace(tau, prefill_only=True)
    return [
        Case("taubench 16k prefill", prefill, with_limits=True),
        Case("taubench 16k prefill, shortest", replace(prefill, order=Order.SHORTEST), with_limits=True),
        Case("taubench 8k prefill", replace(prefill, kv_tokens=8192)),
        Case("taubench 16k", tau),
        Case("miniswe 16k", SimulateOptions("miniswe", kv_tokens=16_384)),
        Case("miniswe 64k", SimulateOptions("miniswe")),
    ]


def _shapes() -> list[Case]:
    return [
        *(Case(name, SimulateOptions(name, limit=2000)) for name in ("prefixes-73", "prefixes-110", "prefixes-200")),
        *(Case(name, SimulateOptions(name, limit=1500)) for name in ("giant", "bursts", "tenants")),
    ]


def _uneven() -> list[Case]:
    """At twice the rate: eight replicas of these speeds are worth 17."""
    return [
        Case(f"{name}, speeds 1,2,4", SimulateOptions(name, limit=2000, rate_scale=2.0, speeds=(1.0, 2.0, 4.0)))
        for name in ("synthetic", "prefixes-73")
    ]


def _restarts() -> list[Case]:
    """One of eight is away for 20 s, and comes back with nothing in its cache."""
    restart = SimulateOptions("", rate_scale=1.0, failures=((3, 60.0),), back_after=20)
    return [
        Case(f"{name}, restart", replace(restart, workload=name, limit=limit))
        for name, limit in (("conversation", 2500), ("prefixes-73", 2000))
    ]


def _controls() -> list[Case]:
    """Where no policy can win anything."""
    return [Case(name, SimulateOptions(name, limit=limit)) for name, limit in (("unique", 1500), ("reasoning", 400))]
