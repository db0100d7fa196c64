"""The replica's Prometheus metrics; names end as vLLM's do."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from replica.step import StepResult
from replica.worker import Status

_TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_STEP_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class ReplicaMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self._prompt_tokens = Counter("ryokan_replica_prompt_tokens", "Prompt tokens of answered requests", registry=r)
        self._cached_tokens = Counter(
            "ryokan_replica_prompt_tokens_cached", "Of those, taken from the cache", registry=r
        )
        self._computed_tokens = Counter(
            "ryokan_replica_prefill_tokens_computed", "Prompt tokens computed in prefill", registry=r
        )
        self._generated_tokens = Counter("ryokan_replica_generation_tokens", "Tokens sampled", registry=r)
        self._preemptions = Counter("ryokan_replica_num_preemptions", "Sequences preempted", registry=r)
        self._deferrals = Counter(
            "ryokan_replica_deferrals", "Steps a sequence waited for another to compute its prefix", registry=r
        )
        self._step_seconds = Histogram(
            "ryokan_replica_step_seconds", "Duration of an engine step", buckets=_STEP_BUCKETS, registry=r
        )
        self._ttft_seconds = Histogram(
            "ryokan_replica_time_to_first_token_seconds",
            "From request received to first token",
            buckets=_TTFT_BUCKETS,
            registry=r,
        )
        self._requests = Counter("ryokan_replica_requests", "Requests, by how they ended", ["outcome"], registry=r)
        self._evicted = Counter("ryokan_replica_blocks_evicted", "Blocks evicted from the prefix cache", registry=r)
        self._running = Gauge("ryokan_replica_num_requests_running", "Sequences running", registry=r)
        self._waiting = Gauge("ryokan_replica_num_requests_waiting", "Sequences waiting", registry=r)
        self._pending = Gauge("ryokan_replica_pending_tokens", "Prompt tokens still to be computed", registry=r)
        self._free = Gauge("ryokan_replica_blocks_free", "Free KV blocks", registry=r)
        self._total = Gauge("ryokan_replica_blocks_total", "All KV blocks", registry=r)

    def observe_step(self, step: StepResult) -> None:
        self._step_seconds.observe(step.seconds)
        self._computed_tokens.inc(step.work.tokens)
        self._generated_tokens.inc(len(step.outputs))
        self._preemptions.inc(len(step.batch.preempted))
        self._deferrals.inc(step.batch.num_deferred)
        self._evicted.inc(len(step.events.removed))

    def observe_first_token(self, seconds: float, prompt_tokens: int, cached_tokens: int) -> None:
        self._ttft_seconds.observe(seconds)
        self._prompt_tokens.inc(prompt_tokens)
        self._cached_tokens.inc(cached_tokens)

    def observe_end(self, outcome: str) -> None:
        self._requests.labels(outcome).inc()

    def render(self, status: Status) -> bytes:
        self._running.set(status.load.running)
        self._waiting.set(status.load.waiting)
        self._pending.set(status.load.pending_tokens)
        self._free.set(status.load.free_blocks)
        self._total.set(status.load.total_blocks)
        return generate_latest(self.registry)
