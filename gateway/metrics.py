"""Every metric of the gateway: name, help, labels; and the few methods that record them."""

from collections import Counter as Tally
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.fleet import Fleet
from gateway.identity import KINDS
from gateway.index.prefix_index import PrefixIndex

TTFT_BUCKETS_S = (
    *(0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0),
)
SHORT_BUCKETS_S = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.5)
STATES = ("ready", "draining", "ejected", "gone")


class Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"ryokan_gateway_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(f"ryokan_gateway_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
            return Histogram(f"ryokan_gateway_{name}", text, labels, registry=registry, buckets=buckets)

        self.requests = counter("requests", "Requests, by what the client got", ("endpoint", "policy", "status"))
        self.broken_streams = counter("broken_streams", "Streams that ended in an error event")
        self.ttft = histogram(
            "ttft_seconds", "Request received to first byte from the replica", TTFT_BUCKETS_S, ("policy",)
        )
        self.routing = histogram("routing_seconds", "One routing decision", SHORT_BUCKETS_S, ("policy",))
        self.tokenise = histogram("tokenise_seconds", "Rendering, tokenising and hashing a prompt", SHORT_BUCKETS_S)
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of answered requests", ("policy",))
        self.predicted = counter("predicted_cached_tokens", "Cached tokens expected when routing", ("policy",))
        self.delivered_tokens = counter("delivered_cached_tokens", "Cached tokens that replicas reported", ("policy",))
        self.mispredicted = counter(
            "mispredicted_cached_tokens",
            "Cached tokens promised by a digest, or just expected, and not there; or there and unpromised",
            ("kind",),
        )
        self.trust = gauge("trust", "Of the cached tokens that a digest promises, the share to count on", ("replica",))
        self.unpromised = gauge("unpromised", "Of those that nobody promises, the share to count on", ("replica",))
        self.decisions = counter("decisions", "Requests sent to a replica, by why to this one", ("policy", "reason"))
        self.prefix_tokens = counter(
            "prefix_tokens",
            "Prompt tokens by how far they came: prompt, computed before, resident, usable, chosen, delivered; "
            "and expected, which is no step (see gateway/routing/ladder.py)",
            ("model", "step"),
        )
        self.prefix_lost = counter(
            "prefix_lost_tokens", "Prompt tokens computed before and not delivered, by cause", ("model", "cause")
        )
        self.regret = counter(
            "regret_seconds", "Wait that another choice would have spared, by cause", ("policy", "cause")
        )
        self.shadowed = counter(
            "shadow_decisions", "Requests that a shadow policy decided too", ("policy", "shadow", "same")
        )
        self.shadow_wait = counter(
            "shadow_predicted_ttft_seconds", "Predicted wait of both choices", ("policy", "shadow", "of")
        )
        self.shadow_cached = counter(
            "shadow_predicted_cached_tokens", "Predicted cached tokens of both choices", ("policy", "shadow", "of")
        )
        self.retries = counter("retries", "Attempts that failed before the client saw a byte", ("reason",))
        self.replicas = gauge("replicas", "Replicas, by state", ("state",))
        self.index_blocks = gauge("index_blocks", "Blocks in the index, by replica", ("replica",))
        self.index_entries = gauge("index_entries", "Distinct blocks in the index, those not swept yet included")
        self.index_bytes = gauge("index_bytes", "Memory of the index, about")
        self.in_flight = gauge("requests_in_flight", "Requests that a replica is working on")
        self.resyncs = counter("resyncs", "Times a replica's digest had to be read anew", ("reason",))
        self.bad_records = counter("bad_records", "Records in Redis that can't be read or believed", ("reason",))
        self.incompatible = gauge(
            "incompatible_replicas", "Replicas that get no credit for their cache, by what differs", ("difference",)
        )
        self.lag = gauge("digest_lag_seconds", "Age of the newest digest delta when it was applied")
        self.intents = counter(
            "intents", "Routed requests told to other gateways (sent) or by them (received)", ("way",)
        )
        self.dropped_intents = counter(
            "intents_dropped", "Routed requests that other gateways were not told of", ("reason",)
        )
        self.recorded_requests = counter(
            "recorded_requests", "Requests for the trace file: written, or dropped", ("fate",)
        )
        self.redis = gauge("redis_up", "Whether Redis can be reached")

    def answered(self, endpoint: str, policy: str, status: int) -> None:
        self.requests.labels(endpoint, policy, str(status)).inc()

    def first_byte(self, policy: str, ttft_s: float, prompt_tokens: int, predicted: int) -> None:
        self.ttft.labels(policy).observe(ttft_s)
        self.prompt_tokens.labels(policy).inc(prompt_tokens)
        self.predicted.labels(policy).inc(predicted)

    def delivered(self, policy: str, tokens: int, errors: Mapping[str, int]) -> None:
        self.delivered_tokens.labels(policy).inc(tokens)
        for kind, wrong in errors.items():
            self.mispredicted.labels(kind).inc(wrong)

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

    def redis_up(self, up: bool) -> None:
        self.redis.set(up)

    def render(self, fleet: Fleet, index: PrefixIndex, now: float) -> bytes:
        """The exposition, with gauges of fleet and index as they are now."""
        statuses = fleet.statuses(now)
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
        self.index_entries.set(len(index))
        self.index_bytes.set(index.bytes)
        self.index_blocks.clear()
        for replica in index.replicas():
            self.index_blocks.labels(replica).set(index.blocks(replica))
        return generate_latest(self._registry)
