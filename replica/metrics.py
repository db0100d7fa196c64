"""The replica's Prometheus metrics; names end as vLLM's do."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from replica.histogram import LightHistogram
from replica.phases import Phases
from replica.protocol import buckets
from replica.step import StepResult
from replica.worker import Status

_OUTCOMES = ("stop", "length", "abort", "error")
_REJECTIONS = ("draining", "queue_full")
_ITERATION_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
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
            buckets=buckets.TTFT,
            registry=r,
        )
        self._request_metrics(r)
        self._evicted = Counter("ryokan_replica_blocks_evicted", "Blocks evicted from the prefix cache", registry=r)
        self._usage = Gauge(
            "ryokan_replica_kv_cache_usage_perc", "KV blocks in use by requests, from 0 to 1", registry=r
        )
        self._running = Gauge("ryokan_replica_num_requests_running", "Sequences running", registry=r)
        self._waiting = Gauge("ryokan_replica_num_requests_waiting", "Sequences waiting", registry=r)
        self._pending = Gauge("ryokan_replica_pending_tokens", "Prompt tokens still to be computed", registry=r)
        self._free = Gauge("ryokan_replica_blocks_free", "Free KV blocks", registry=r)
        self._total = Gauge("ryokan_replica_blocks_total", "All KV blocks", registry=r)

    def _request_metrics(self, r: CollectorRegistry) -> None:
        def seconds(name: str, text: str, bounds: tuple[float, ...] = buckets.REQUEST) -> Histogram:
            return Histogram(f"ryokan_replica_{name}_seconds", text, buckets=bounds, registry=r)

        def tokens(name: str, text: str) -> Histogram:
            return Histogram(f"ryokan_replica_{name}", text, buckets=buckets.TOKENS, registry=r)

        self._queries = Counter("ryokan_replica_prefix_cache_queries", "Prompt tokens looked up", registry=r)
        self._hits = Counter("ryokan_replica_prefix_cache_hits", "Of those, found", registry=r)
        self._itl = LightHistogram(
            "ryokan_replica_inter_token_latency_seconds", "Between two tokens of an answer", buckets.ITL, r
        )
        self._per_token = seconds(
            "request_time_per_output_token", "Mean of a request's inter-token latencies", buckets.ITL
        )
        self._e2e = seconds("e2e_request_latency", "From request received to its last token")
        self._queue = seconds("request_queue_time", "From request received to its first step")
        self._prefill = seconds("request_prefill_time", "From its first step to its first token")
        self._decode = seconds("request_decode_time", "From its first token to its last")
        self._inference = seconds("request_inference_time", "From its first step to its last token")
        self._iteration = LightHistogram(
            "ryokan_replica_iteration_tokens_total", "Tokens computed in a step", _ITERATION_BUCKETS, r
        )
        self._prompt_size = tokens("request_prompt_tokens", "Prompt tokens of a request")
        self._answer_size = tokens("request_generation_tokens", "Tokens of its answers")
        ended = Counter(
            "ryokan_replica_request_success", "Requests, by how they ended", ["finished_reason"], registry=r
        )
        self._ended = {outcome: ended.labels(outcome) for outcome in _OUTCOMES}
        rejected = Counter(
            "ryokan_replica_admission_rejections", "Requests that were not let in, by why", ["reason"], registry=r
        )
        self._rejected = {reason: rejected.labels(reason) for reason in _REJECTIONS}

    def observe_step(self, step: StepResult) -> None:
        self._step_seconds.observe(step.seconds)
        self._iteration.observe(step.batch.num_tokens)
        self._computed_tokens.inc(step.work.tokens)
        self._generated_tokens.inc(len(step.outputs))
        self._preemptions.inc(len(step.batch.preempted))
        self._deferrals.inc(step.batch.num_deferred)
        self._evicted.inc(len(step.events.removed))

    def observe_first_token(self, seconds: float, prompt_tokens: int, cached_tokens: int) -> None:
        self._ttft_seconds.observe(seconds)
        for counter in (self._prompt_tokens, self._queries):
            counter.inc(prompt_tokens)
        for counter in (self._cached_tokens, self._hits):
            counter.inc(cached_tokens)

    def observe_tokens(self, gap_s: float, tokens: int) -> None:
        """So many tokens of one answer came at once, so long after the one before."""
        self._itl.observe(gap_s / tokens, tokens)

    def observe_rejection(self, reason: str) -> None:
        self._rejected[reason].inc()

    def observe_end(self, outcome: str, phases: Phases) -> None:
        """`outcome`: one of stop, length, abort, error. Times are of those that came to an end."""
        self._ended[outcome].inc()
        if outcome not in ("stop", "length") or phases.last_token is None:
            return
        for histogram, seconds in (
            (self._e2e, phases.last_token - phases.received),
            (self._queue, phases.queue_s),
            (self._prefill, phases.prefill_s),
            (self._decode, phases.decode_s),
            (self._inference, phases.inference_s),
            (self._per_token, phases.per_output_token_s),
        ):
            if seconds is not None:
                histogram.observe(seconds)
        self._prompt_size.observe(phases.prompt_tokens)
        self._answer_size.observe(phases.output_tokens)

    def render(self, status: Status) -> bytes:
        self._running.set(status.load.running)
        self._waiting.set(status.load.waiting)
        self._pending.set(status.load.pending_tokens)
        in_use = status.load.total_blocks - status.load.free_blocks - status.load.evictable_blocks
        self._usage.set(in_use / max(1, status.load.total_blocks))
        self._free.set(status.load.free_blocks)
        self._total.set(status.load.total_blocks)
        return generate_latest(self.registry)
