"""When a request was received, when its prefill began, when it had its first token and when it ended; and the spans of
the phases in between. Definitions are vLLM's: prefill lasts from the first step that computes for it to its first
token, preemptions included."""

from dataclasses import dataclass

from replica.protocol.spans import Randbits, Span, SpanContext, Value

_NS = 1e9


@dataclass(slots=True)
class Phases:
    """Seconds of one clock."""

    received: float
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    @property
    def queue_s(self) -> float | None:
        return _between(self.received, self.scheduled)

    @property
    def prefill_s(self) -> float | None:
        return _between(self.scheduled, self.first_token)

    @property
    def decode_s(self) -> float | None:
        return _between(self.first_token, self.last_token)

    @property
    def inference_s(self) -> float | None:
        return _between(self.scheduled, self.last_token)

    @property
    def per_output_token_s(self) -> float | None:
        decode_s = self.decode_s
        return None if decode_s is None or self.output_tokens < 2 else decode_s / (self.output_tokens - 1)


def phase_spans(
    phases: Phases,
    parent: SpanContext,
    attributes: dict[str, Value],
    outcome: str,
    ended: float,
    ended_at_ns: int,
    randbits: Randbits,
) -> list[Span]:
    """`ended` by the phases' clock, and `ended_at_ns` since the epoch, are the same moment."""

    def at(moment: float) -> int:
        return ended_at_ns - int((ended - moment) * _NS)

    whole = parent.child(randbits)
    error = outcome if outcome in ("abort", "error") else None
    about: dict[str, Value] = {
        "gen_ai.usage.input_tokens": phases.prompt_tokens,
        "gen_ai.usage.output_tokens": phases.output_tokens,
        "gen_ai.response.finish_reason": outcome,
    }
    spans = [Span(whole, "generate", at(phases.received), ended_at_ns, attributes | about, "server", error)]

    def phase(name: str, start: float | None, end: float | None, **details: Value) -> None:
        if start is not None:
            stop = ended if end is None else end
            spans.append(Span(whole.child(randbits), name, at(start), at(stop), dict(details)))

    phase("queue", phases.received, phases.scheduled)
    phase("prefill", phases.scheduled, phases.first_token, **{"ryokan.cached_tokens": phases.cached_tokens})
    phase("decode", phases.first_token, phases.last_token)
    return spans


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(0.0, end - start)
