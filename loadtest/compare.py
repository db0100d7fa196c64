"""Runs one workload under several policies on a running fleet, each from empty caches, and reports the figures.

Everything goes over the public HTTP API. Caches start empty for each run, policies alternate within each round, and
the warm-up is apart from what is measured.
"""

import asyncio
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console

from loadtest import metrics
from loadtest.client import ChatClient, RequestRecord, run_conversations, run_open_loop
from loadtest.errors import CompareError
from loadtest.gateway_api import GatewayApi
from loadtest.machine import machine, versions
from loadtest.metrics import Figures
from loadtest.progress import progress
from loadtest.report import Report
from loadtest.workload import Workload, WorkloadError, cached_limit, prompt_ids, sent_request, travel_workload
from replica.protocol import headers
from replica.protocol.text import ModelFolderError, ModelText, TemplateError

OURS = "ttft"
BASELINE = "round_robin"
_WARMUP_TOKENS = 16
_WARMUP_PROMPTS = (
    "Name three colours of the rainbow.",
    "How many minutes are there in a day?",
    "Write one line about the sea in winter.",
)


@dataclass(frozen=True, slots=True)
class CompareOptions:
    gateway_url: str
    model: Path
    """The folder of the model that the fleet serves: its tokenizer and chat template size the prompts."""
    out_dir: Path = Path("out/demo")
    policies: tuple[str, ...] = (BASELINE, OURS)
    agents: int = 50
    cities: int = 10
    turns: int = 2
    output_tokens: int = 150
    seed: int = 1
    ramp_s: float = 0.0
    rate_per_s: float | None = None
    """Arrivals a second of an open loop; None: a closed loop, all agents at once."""
    rounds: int = 1
    request_timeout_s: float = 300.0

    @property
    def command(self) -> str:
        """The command line that repeats this comparison."""
        words = ["ryokan", "compare", "--gateway", self.gateway_url, "--policies", ",".join(self.policies)]
        for flag in ("agents", "cities", "turns", "output_tokens", "seed", "ramp_s", "rounds", "model"):
            words += [f"--{flag.replace('_', '-')}", str(getattr(self, flag))]
        if self.rate_per_s is not None:
            words += ["--rate", str(self.rate_per_s)]
        return shlex.join(words)


async def compare(options: CompareOptions, console: Console | None = None) -> Report:
    """Raises CompareError. Restores the gateway's policy at the end, whatever happens."""
    console = console or Console(stderr=True)
    started = datetime.now(UTC)
    text, workload = await asyncio.to_thread(_prepare, options)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        gateway = GatewayApi(session, options.gateway_url)
        bench = _Bench(session, gateway, await gateway.model(), text, workload, options, console)
        policy_before = await gateway.set_policy(options.policies[0])
        try:
            for round_number in range(options.rounds):
                await bench.run_round(round_number)
            traced = await bench.trace()
        finally:
            await _restore(gateway, policy_before, console)
    return bench.report(started, traced)


def _prepare(options: CompareOptions) -> tuple[ModelText, Workload]:
    if not options.policies or len(set(options.policies)) < len(options.policies) or options.rounds < 1:
        raise CompareError("policies must name at least one policy, none twice, and rounds be at least 1")
    try:
        text = ModelText.load(options.model)
        workload = travel_workload(
            text, options.seed, options.agents, options.cities, options.turns, options.output_tokens
        )
    except (ModelFolderError, TemplateError, WorkloadError) as error:
        raise CompareError(str(error)) from error
    return text, workload


async def _restore(gateway: GatewayApi, policy: str, console: Console) -> None:
    try:
        await gateway.set_policy(policy)
    except CompareError as error:
        console.print(f"couldn't set the policy back to {policy}: {error}", style="yellow", highlight=False)


@dataclass(slots=True)
class _Bench:
    """The state of one comparison: what was run, in which order, and what came of it."""

    session: aiohttp.ClientSession
    gateway: GatewayApi
    model: str
    text: ModelText
    workload: Workload
    options: CompareOptions
    console: Console
    order: list[str] = field(default_factory=list)
    rounds: dict[str, list[Figures]] = field(default_factory=dict)
    ttfts: dict[str, list[float]] = field(default_factory=dict)
    warmup_requests: int = 0
    warmup_s: float = 0.0

    async def run_round(self, number: int) -> None:
        """The stated order, and the reverse in every second round: what drifts with time hits all policies alike."""
        policies = self.options.policies if number % 2 == 0 else self.options.policies[::-1]
        for policy in policies:
            label = f"{policy}, round {number + 1} of {self.options.rounds}" if self.options.rounds > 1 else policy
            await self.gateway.set_policy(policy)
            await self._warm_up(label)
            await self.gateway.reset_caches()
            replicas = [replica.name for replica in await self.gateway.ready_replicas()]
            records = await self._load(label)
            self._check_counts(records)
            figures = metrics.summarise(
                records,
                requests_planned=self.workload.requests,
                replicas=replicas,
                cached_limit=self._limit(records),
            )
            self.order.append(policy)
            self.rounds.setdefault(policy, []).append(figures)
            self.ttfts.setdefault(policy, []).extend(metrics.ttft_values([r for r in records if r.ok]))

    async def _warm_up(self, label: str) -> None:
        """A few short prompts straight to each replica, so that none pays for first use while it is measured."""
        replicas = await self.gateway.ready_replicas()
        start_s = time.monotonic()
        async with progress(self.console, f"{label}: warm-up", len(replicas) * len(_WARMUP_PROMPTS)) as advance:
            for replica in replicas:
                model = await self.gateway.model(replica.url)
                client = ChatClient(self.session, replica.url, model, self.options.request_timeout_s)
                for prompt in _WARMUP_PROMPTS:
                    record = await client.send([{"role": "user", "content": prompt}], _WARMUP_TOKENS)
                    if not record.ok:
                        raise CompareError(f"warm-up of {replica.name} at {replica.url} failed: {record.error}")
                    self.warmup_requests += 1
                    advance()
        self.warmup_s += time.monotonic() - start_s

    async def _load(self, label: str) -> list[RequestRecord]:
        options, conversations = self.options, self.workload.conversations
        client = self._client()
        async with progress(self.console, f"{label}: requests", self.workload.requests) as advance:
            if options.rate_per_s is not None:
                records = await run_open_loop(
                    client,
                    conversations,
                    options.output_tokens,
                    options.rate_per_s,
                    options.seed,
                    on_answer=lambda _: advance(),
                )
            else:
                records = await run_conversations(
                    client, conversations, options.output_tokens, None, options.ramp_s, on_answer=lambda _: advance()
                )
        if not any(record.ok for record in records):
            raise CompareError(f"every request failed under {label}; the first: {records[0].error}")
        return records

    def _client(self) -> ChatClient:
        return ChatClient(self.session, self.gateway.url, self.model, self.options.request_timeout_s)

    def _check_counts(self, records: Sequence[RequestRecord]) -> None:
        """Another tokenizer than the fleet's would give another limit, so no comparison with it."""
        for record in records:
            expected = len(prompt_ids(self.text, record.messages))
            if record.ok and record.prompt_tokens != expected:
                raise CompareError(
                    f"the fleet counts {record.prompt_tokens} tokens in a prompt of {expected}: the model folder"
                    f" {self.options.model} isn't the model that it serves"
                )

    def _limit(self, records: Sequence[RequestRecord]) -> int:
        in_order = sorted(records, key=lambda record: record.sent_s)
        return cached_limit(sent_request(self.text, r.messages, r.text, counted=r.ok) for r in in_order)

    async def trace(self) -> dict[str, Any]:
        """One more first turn, about a city that is in some cache, with its timeline through gateway and replica."""
        policy, _ = ours_and_baseline(self.options.policies)
        await self.gateway.set_policy(policy)
        record = await self._client().send(
            self.workload.traced.messages(), self.options.output_tokens, {headers.TRACE: "1"}
        )
        if not record.ok:
            raise CompareError(f"the traced request failed: {record.error}")
        trace = await self.gateway.trace(record.request_id)
        return {
            "policy": policy,
            "replica": record.replica,
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "output_tokens": record.output_tokens,
            "ttft_s": record.ttft_s,
            "latency_s": record.end_s - record.sent_s,
            "request_id": record.request_id,
            **trace,
        }

    def report(self, started: datetime, traced: Mapping[str, Any]) -> Report:
        options = self.options
        ours, baseline = ours_and_baseline(options.policies)
        compared = metrics.compare_figures(self.rounds[ours], self.rounds[baseline])
        load = {"closed_loop": options.rate_per_s is None, "ramp_s": options.ramp_s, "rate_per_s": options.rate_per_s}
        return Report(
            started_at=started.isoformat(timespec="seconds"),
            command=options.command,
            model=self.model,
            machine=machine(),
            versions=versions(),
            workload=self.workload.describe() | load | {"rounds": options.rounds},
            order=list(self.order),
            warmup={"requests": self.warmup_requests, "duration_s": self.warmup_s},
            policies={
                policy: metrics.median_figures(self.rounds[policy]) | {"rounds": self.rounds[policy]}
                for policy in options.policies
            },
            ratios={"policy": ours, "baseline": baseline, **compared},
            request=dict(traced),
            samples={policy: {"ttft_s": self.ttfts[policy]} for policy in options.policies},
        )


def ours_and_baseline(policies: Sequence[str]) -> tuple[str, str]:
    """The pair that ratios are about: ttft and round robin where both run, else the last and the first."""
    ours = OURS if OURS in policies else policies[-1]
    baseline = BASELINE if BASELINE in policies else policies[0]
    return ours, baseline
