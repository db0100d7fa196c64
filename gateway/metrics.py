"""Every metric of the gateway: name, help, labels; and the few methods that record them."""

from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from gateway.counters import Count, Counters, Histograms
from gateway.errors import GatewayError, answer_for
from gateway.fleet import Fleet, Status
from gateway.hold.room import WaitingRoom
from gateway.identity import KINDS
from gateway.index.prefix_index import PrefixIndex
from gateway.trust import NO_ERRORS, Errors
from replica.protocol import buckets

SHORT_BUCKETS_S = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.5)
REJECTED = (429, 503)
STATES = ("ready", "draining", "stuck", "ejected", "gone")


class Maker:
    """Of metrics, named after the gateway."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counters:
        return Counters(f"ryokan_gateway_{name}", text, labels, self._registry)

    def gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(f"ryokan_gateway_{name}", text, labels, registry=self._registry)

    def histogram(self, name: str, text: str, bounds: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histograms:
        return Histograms(f"ryokan_gateway_{name}", text, labels, self._registry, bounds)


class OfPolicy:
    """What is counted for each request, of those that one policy decided."""

    __slots__ = (
        "delivered",
        "e2e",
        "generated",
        "per_token",
        "predicted",
        "prompt_tokens",
        "queue_time",
        "routing",
        "ttft",
    )

    def __init__(self, metrics: "Metrics", policy: str) -> None:
        self.routing = metrics.routing.labels(policy)
        self.ttft = metrics.ttft.labels(policy)
        self.e2e = metrics.e2e.labels(policy)
        self.queue_time = metrics.queue_time.labels(policy)
        self.per_token = metrics.per_token.labels(policy)
        self.generated = metrics.generated.labels(policy)
        self.prompt_tokens = metrics.prompt_tokens.labels(policy)
        self.predicted = metrics.predicted.labels(policy)
        self.delivered = metrics.delivered_tokens.labels(policy)

    def first_byte(self, ttft_s: float, prompt_tokens: int, predicted: int) -> None:
        self.ttft.observe(ttft_s)
        self.prompt_tokens.value += prompt_tokens
        self.predicted.value += predicted

    def ended(self, took_s: float, held_s: float | None, itl_s: float | None, tokens: int) -> None:
        """A request that got an answer, to the end."""
        self.e2e.observe(took_s)
        self.generated.value += tokens
        if held_s is not None:
            self.queue_time.observe(held_s)
        if itl_s is not None:
            self.per_token.observe(itl_s)


class _Policies(dict[str, OfPolicy]):
    """By name; made when they are first asked for."""

    def __init__(self, metrics: "Metrics") -> None:
        super().__init__()
        self._metrics = metrics

    def __missing__(self, policy: str) -> OfPolicy:
        of = self[policy] = OfPolicy(self._metrics, policy)
        return of


class Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.of = _Policies(self)
        self._answers: dict[tuple[str, str, int], Count] = {}
        new = Maker(registry)
        self._of_requests(new)
        self._of_routing(new)
        self._of_the_fleet(new)
        # Counted by the thread that writes the file, too.
        self.recorded_requests = Counter(
            "ryokan_gateway_recorded_requests",
            "Requests for the trace file: written, or dropped",
            ("fate",),
            registry=registry,
        )

    def _of_requests(self, new: Maker) -> None:
        self.requests = new.counter("requests", "Requests, by what the client got", ("endpoint", "policy", "status"))
        self.broken_streams = new.counter("broken_streams", "Streams that ended in an error event")
        self.rejected = new.counter("admission_rejections", "Requests answered with 429 or 503, by why", ("reason",))
        self.ttft = new.histogram(
            "time_to_first_token_seconds", "Request received to first byte from the replica", buckets.TTFT, ("policy",)
        )
        self.e2e = new.histogram(
            "e2e_request_latency_seconds", "Request received to the end of its answer", buckets.REQUEST, ("policy",)
        )
        self.queue_time = new.histogram(
            "request_queue_time_seconds", "Prompt tokenised to sent to a replica", buckets.REQUEST, ("policy",)
        )
        self.per_token = new.histogram(
            "request_time_per_output_token_seconds",
            "Mean time between the tokens of a streamed answer",
            buckets.ITL,
            ("policy",),
        )
        self.generated = new.counter("generation_tokens", "Tokens of answers, as far as they are told", ("policy",))
        self.retries = new.counter("retries", "Attempts that failed before the client saw a byte", ("reason",))
        self.resumes = new.counter(
            "resumes", "Streams that broke off: resumed by another replica (per attempt), or failed", ("outcome",)
        )
        self.held_requests = new.gauge("held_requests", "Requests that wait in the gateway for their turn")
        self.held_tokens = new.gauge("held_tokens", "Their uncached prompt tokens")
        self.hold = new.histogram("hold_seconds", "How long a held request waited in the gateway", buckets.REQUEST)
        self.refusals = new.counter("refused_requests", "Requests that were given up before any replica", ("reason",))
        self.lost_lines = new.counter("access_log_dropped_lines", "Lines of the access log that found no room")

    def _of_routing(self, new: Maker) -> None:
        self.routing = new.histogram("routing_seconds", "One routing decision", SHORT_BUCKETS_S, ("policy",))
        tokenise = new.histogram("tokenise_seconds", "Rendering, tokenising and hashing a prompt", SHORT_BUCKETS_S)
        self.tokenise = tokenise.labels()
        self.prompt_tokens = new.counter("prompt_tokens", "Prompt tokens of answered requests", ("policy",))
        self.predicted = new.counter("predicted_cached_tokens", "Cached tokens expected when routing", ("policy",))
        self.delivered_tokens = new.counter(
            "delivered_cached_tokens", "Cached tokens that replicas reported", ("policy",)
        )
        self.mispredicted = new.counter(
            "mispredicted_cached_tokens",
            "Cached tokens promised by a digest, or just expected, and not there; or there and unpromised",
            ("kind",),
        )
        self._errors: tuple[Count, ...] = ()
        """Its counts, by kind; they come with the first answer."""
        self.trust = new.gauge(
            "trust", "Of the cached tokens that a digest promises, the share to count on", ("replica",)
        )
        self.unpromised = new.gauge("unpromised", "Of those that nobody promises, the share to count on", ("replica",))
        self.decisions = new.counter(
            "decisions", "Requests sent to a replica, by why to this one", ("policy", "reason")
        )
        self.prefix_tokens = new.counter(
            "prefix_tokens",
            "Prompt tokens by how far they came: prompt, computed before, resident, usable, chosen, delivered; "
            "and expected, which is no step (see gateway/routing/ladder.py)",
            ("model", "step"),
        )
        self.prefix_lost = new.counter(
            "prefix_lost_tokens", "Prompt tokens computed before and not delivered, by cause", ("model", "cause")
        )
        self.regret = new.counter(
            "regret_seconds", "Wait that another choice would have spared, by cause", ("policy", "cause")
        )
        self.shadowed = new.counter(
            "shadow_decisions", "Requests that a shadow policy decided too", ("policy", "shadow", "same")
        )
        self.shadow_wait = new.counter(
            "shadow_predicted_ttft_seconds", "Predicted wait of both choices", ("policy", "shadow", "of")
        )
        self.shadow_cached = new.counter(
            "shadow_predicted_cached_tokens", "Predicted cached tokens of both choices", ("policy", "shadow", "of")
        )

    def _of_the_fleet(self, new: Maker) -> None:
        self.replicas = new.gauge("replicas", "Replicas, by state", ("state",))
        self.index_blocks = new.gauge("index_blocks", "Blocks in the index, by replica", ("replica",))
        self.index_entries = new.gauge("index_entries", "Distinct blocks in the index, those not swept yet included")
        self.index_bytes = new.gauge("index_bytes", "Memory of the index, about")
        self.in_flight = new.gauge("requests_in_flight", "Requests that a replica is working on")
        self.resyncs = new.counter("resyncs", "Times a replica's digest had to be read anew", ("reason",))
        self.bad_records = new.counter("bad_records", "Records in Redis that can't be read or believed", ("reason",))
        self.incompatible = new.gauge(
            "incompatible_replicas", "Replicas that get no credit for their cache, by what differs", ("difference",)
        )
        self.lag = new.gauge("digest_lag_seconds", "Age of the newest digest delta when it was applied")
        self.intents = new.counter(
            "intents", "Routed requests told to other gateways (sent) or by them (received)", ("way",)
        )
        for way in ("sent", "received"):
            self.intents.labels(way)
        self.dropped_intents = new.counter(
            "intents_dropped", "Routed requests that other gateways were not told of", ("reason",)
        )
        self.tasks = new.gauge("tasks", "Tasks of the event loop: flat where nothing leaks")
        self.redis = new.gauge("redis_up", "Whether Redis can be reached")

    def answered(self, endpoint: str, policy: str, status: int, code: str | None = None) -> None:
        """`code`: of the gateway's own error."""
        count = self._answers.get((endpoint, policy, status))
        if count is None:
            count = self._answers[endpoint, policy, status] = self.requests.labels(endpoint, policy, str(status))
        count.value += 1.0
        if status in REJECTED and code is not None:
            self.rejected.labels(code).inc()

    def unlogged(self, lines: int) -> None:
        self.lost_lines.inc(lines)

    def delivered(self, policy: str, tokens: int, errors: Errors) -> None:
        self.of[policy].delivered.value += tokens
        if not self._errors:
            self._errors = tuple(map(self.mispredicted.labels, Errors._fields))
        if errors is not NO_ERRORS:
            for count, wrong in zip(self._errors, errors, strict=True):
                count.value += wrong

    def recorded(self, fate: str) -> None:
        self.recorded_requests.labels(fate).inc()

    def resync(self, reason: str) -> None:
        self.resyncs.labels(reason).inc()

    def bad_record(self, reason: str) -> None:
        self.bad_records.labels(reason).inc()

    def digest_lag(self, seconds: float) -> None:
        self.lag.set(seconds)

    def intents_sent(self, intents: int) -> None:
        self.intents.labels("sent").inc(intents)

    def intents_received(self, intents: int) -> None:
        self.intents.labels("received").inc(intents)

    def intents_dropped(self, reason: str, intents: int) -> None:
        self.dropped_intents.labels(reason).inc(intents)

    def left(self, held_s: float) -> None:
        """A request that was held isn't any more."""
        self.hold.observe(held_s)

    def refused(self, error: GatewayError) -> None:
        self.refusals.labels(answer_for(error).code or "").inc()

    def redis_up(self, up: bool) -> None:
        self.redis.set(up)

    def render(
        self, fleets: Iterable[Fleet], indexes: Sequence[PrefixIndex], rooms: Sequence[WaitingRoom], now: float
    ) -> bytes:
        """The exposition, with gauges of all pools as they are now."""
        self.held_requests.set(sum(map(len, rooms)))
        self.held_tokens.set(sum(room.tokens for room in rooms))
        self._of_replicas({name: status for fleet in fleets for name, status in fleet.statuses(now).items()})
        self.index_entries.set(sum(map(len, indexes)))
        self.index_bytes.set(sum(index.bytes for index in indexes))
        self.index_blocks.clear()
        for index in indexes:
            for replica in index.replicas():
                self.index_blocks.labels(replica).set(index.blocks(replica))
        return generate_latest(self._registry)

    def _of_replicas(self, statuses: Mapping[str, Status]) -> None:
        tally = Tally(status.state for status in statuses.values())
        differences = Tally(
            kind
            for status in statuses.values()
            if status.state != "gone"
            for kind in {difference.kind for difference in status.differences}
        )
        for kind in KINDS:
            self.incompatible.labels(kind).set(differences[kind])
        for state in STATES:
            self.replicas.labels(state).set(tally[state])
        self.trust.clear()
        self.unpromised.clear()
        for replica, status in statuses.items():
            self.trust.labels(replica).set(status.trust)
            self.unpromised.labels(replica).set(status.unpromised)
        self.in_flight.set(sum(status.leases for status in statuses.values()))
