"""Replays a trace against a running fleet, once for each policy and round, through the public HTTP API alone."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console

from loadtest import metrics
from loadtest.client import CompletionClient, RequestRecord
from loadtest.errors import CompareError
from loadtest.gateway_api import GatewayApi, ReplicaShape
from loadtest.machine import machine, versions
from loadtest.metrics import Figures
from loadtest.progress import progress
from loadtest.replay.agreement import compared, fitted_latency, simulated_figures
from loadtest.replay.figures import figures_of
from loadtest.replay.player import play, probe_idle
from loadtest.replay.prompts import PromptMaker, words
from loadtest.replay.report import ReplayReport, Sample
from loadtest.replay.warm_up import WarmUp
from loadtest.simulate.errors import SimulateError
from loadtest.simulate.prompts import Request, Row, make_requests
from loadtest.trace.file import read_trace
from loadtest.trace.plan import Plan, PlanOptions, fine_rows, fitting, make_plan, session_names
from replica.protocol.hashing import BLOCK_SIZE

_PROBES = 15


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    url: str
    trace: Path
    out_dir: Path = Path("out/replay")
    policies: tuple[str, ...] = ()
    """Empty: the one that the gateway has."""
    rounds: int = 1
    scale: int = 1
    plan: PlanOptions = field(default_factory=PlanOptions)
    warm_up: WarmUp = field(default_factory=WarmUp)
    resets_caches: bool = False
    """Before each run; with several runs they are reset anyhow."""
    compares_simulation: bool = False
    latency_s: float | None = None
    """For the simulation; None: fitted from a few requests to the idle fleet."""
    request_timeout_s: float = 300.0
    admin_key: str | None = field(default=None, repr=False)
    command: str = "ryokan replay"


async def replay(options: ReplayOptions, console: Console | None = None) -> ReplayReport:
    """Raises CompareError. Restores the gateway's policy at the end, whatever happens."""
    console = console or Console(stderr=True)
    if len(set(options.policies)) < len(options.policies) or options.rounds < 1:
        raise CompareError("--policies: one is named twice" if options.rounds > 0 else "--rounds: at least 1")
    started = datetime.now(UTC)
    plan = await asyncio.to_thread(lambda: make_plan(read_trace(options.trace, options.scale), options.plan))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        gateway = GatewayApi(session, options.url, admin_key=options.admin_key)
        plan = fitting(plan, await gateway.max_context())
        if not plan.rows:
            raise CompareError("--trace: no request fits the model's context; --scale divides lengths")
        rig = await _Rig.make(options, gateway, session, plan, console)
        await rig.run_all()
    return rig.report(started)


@dataclass(slots=True)
class _Rig:
    """The state of one replay: what was run, in which order, and what came of it."""

    options: ReplayOptions
    gateway: GatewayApi
    client: CompletionClient
    model: str
    plan: Plan
    rows: list[Row]
    requests: list[Request]
    maker: PromptMaker
    console: Console
    fleet: list[ReplicaShape] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    rounds: dict[str, list[Figures]] = field(default_factory=dict)
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    agreement: dict[str, Any] | None = None

    @classmethod
    async def make(
        cls, options: ReplayOptions, gateway: GatewayApi, session: aiohttp.ClientSession, plan: Plan, console: Console
    ) -> "_Rig":
        model = await gateway.model()
        try:
            maker = PromptMaker(await gateway.tokens(words()))
        except ValueError as error:
            raise CompareError(str(error)) from error
        rows = fine_rows(plan)
        client = CompletionClient(session, gateway.url, model, options.request_timeout_s)
        return cls(options, gateway, client, model, plan, rows, make_requests(rows, [-1] * len(rows)), maker, console)

    def measured(self, number: int, at_s: float) -> bool:
        return self.options.warm_up.is_over(number, at_s, len(self.rows))

    async def run_all(self) -> None:
        options = self.options
        if options.compares_simulation:
            self.agreement = {"latency_s": await self._latency(), "policies": {}}
        if not options.policies:
            for number in range(options.rounds):
                await self._run(None, number)
            return
        before = await self.gateway.set_policy(options.policies[0])
        try:
            for number in range(options.rounds):
                # The reverse in every second round: what drifts with time hits all policies alike.
                for policy in options.policies if number % 2 == 0 else options.policies[::-1]:
                    await self.gateway.set_policy(policy)
                    await self._run(policy, number)
        finally:
            await self._restore(before)

    async def _restore(self, policy: str) -> None:
        try:
            await self.gateway.set_policy(policy)
        except CompareError as error:
            self.console.print(f"couldn't set the policy back to {policy}: {error}", style="yellow", highlight=False)

    async def _latency(self) -> float:
        if self.options.latency_s is not None:
            return self.options.latency_s
        length = round(sum(row.tokens for row in self.rows) / len(self.rows))
        unused = 1 + max(max(row.blocks) for row in self.rows)
        probes = await probe_idle(self.client, self.maker, [length] * _PROBES, unused)
        if not any(probe.ok for probe in probes):
            raise CompareError(f"no request to the idle fleet was answered; the first: {probes[0].error}")
        # The first ones open connections.
        return fitted_latency([probe for probe in probes[len(probes) // 3 :] if probe.ok], await self.gateway.fleet())

    async def _run(self, policy: str | None, number: int) -> None:
        if self._resets:
            await self.gateway.reset_caches()
        label = f"{policy or 'replay'}, round {number + 1} of {self.options.rounds}"
        async with progress(self.console, label, len(self.rows)) as advance:
            records = await play(self.client, self.rows, session_names(self.plan), self.maker, lambda _: advance())
        self._check(records, label)
        policy = policy or next(record.policy for record in records if record.ok) or "current"
        self.fleet = await self.gateway.fleet()
        figures = await asyncio.to_thread(
            figures_of,
            records,
            self.requests,
            [replica.cost for replica in self.fleet],
            sum(replica.blocks for replica in self.fleet),
            [replica.name for replica in self.fleet],
            self.measured,
        )
        self.order.append(policy)
        self.rounds.setdefault(policy, []).append(figures)
        self.samples[policy] = self._samples(records)
        if self.agreement is not None:
            await self._simulate(policy, figures)

    def _check(self, records: Sequence[RequestRecord], label: str) -> None:
        if not any(record.ok for record in records):
            raise CompareError(f"{label}: every request failed; the first: {records[0].error}")
        for record in records:
            expected = self.rows[record.agent].tokens
            if record.ok and record.prompt_tokens != expected:
                raise CompareError(
                    f"the fleet counts {record.prompt_tokens} tokens in a prompt of {expected} token ids"
                )

    def _samples(self, records: Sequence[RequestRecord]) -> list[Sample]:
        start_s = min(record.due_s for record in records)
        return [
            Sample(
                record.due_s - start_s,
                record.ttft_s,
                record.replica,
                record.prompt_tokens - record.cached_tokens,
                self.measured(record.agent, record.due_s - start_s),
            )
            for record in sorted(records, key=lambda record: record.due_s)
            if record.ok and record.ttft_s is not None
        ]

    async def _simulate(self, policy: str, figures: Figures) -> None:
        assert self.agreement is not None
        began = time.monotonic()
        try:
            simulated = await asyncio.to_thread(
                simulated_figures,
                self.plan,
                self.fleet,
                policy,
                self.options.plan.seed,
                self.agreement["latency_s"],
                self.measured,
            )
        except SimulateError as error:
            raise CompareError(f"--compare-simulation: {error}") from error
        self.console.print(f"simulated in {time.monotonic() - began:.1f} s", highlight=False)
        self.agreement["policies"][policy] = compared(figures, simulated)

    @property
    def _resets(self) -> bool:
        return self.options.resets_caches or bool(self.options.policies) or self.options.rounds > 1

    def _notes(self) -> list[str]:
        notes = ["Blocks of answers aren't found again: the next prompt holds made-up tokens at their place."]
        if left_out := self.plan.left_out:
            notes.append(f"{left_out} requests were left out: too long for the model's context, or after such a one.")
        if not self._resets:
            notes.append("Caches were left as they were found; the limits are those of empty ones.")
        return notes

    def _trace(self) -> dict[str, Any]:
        options, plan = self.options, self.plan
        return {
            "name": plan.name,
            "loop": str(plan.loop),
            "requests": len(plan.rows),
            "left_out": plan.left_out,
            "scale": options.scale,
            "rate_scale": options.plan.rate_scale,
            "spread_s": options.plan.spread_s,
            "seed": options.plan.seed,
            "warm_up_s": options.warm_up.seconds,
            "warm_up_share": options.warm_up.share,
            "rounds": options.rounds,
            "prompt_tokens": sum(row.tokens for row in self.rows),
            "output_tokens": sum(row.output for row in self.rows),
        }

    def report(self, started: datetime) -> ReplayReport:
        return ReplayReport(
            started_at=started.isoformat(timespec="seconds"),
            command=self.options.command,
            model=self.model,
            machine=machine(),
            versions=versions(),
            trace=self._trace(),
            fleet={
                "replicas": [replica.name for replica in self.fleet],
                "kv_tokens": sum(replica.blocks for replica in self.fleet) * BLOCK_SIZE,
                "costs": {replica.name: replica.cost for replica in self.fleet},
            },
            order=list(self.order),
            policies={
                policy: metrics.median_figures(rounds) | {"rounds": rounds} for policy, rounds in self.rounds.items()
            },
            samples=self.samples,
            agreement=self.agreement,
            notes=self._notes(),
        )
