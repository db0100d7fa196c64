"""Timelines of the requests that asked for one: phases, and KV entries over time."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from replica.step import StepResult

_KEPT = 256


@dataclass(slots=True)
class Timeline:
    received: float
    events: list[dict[str, Any]] = field(default_factory=list)
    kv: list[tuple[float, int]] = field(default_factory=list)
    """(seconds since received, tokens whose K and V every layer holds)"""


class TraceLog:
    """Keeps the latest timelines. Written by the engine's thread once a request is open, read by the server's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._timelines: OrderedDict[str, Timeline] = OrderedDict()
        self._open: dict[str, Timeline] = {}

    def open(self, request_id: str) -> None:
        timeline = Timeline(self._clock())
        timeline.events.append({"event": "queued", "at_s": 0.0})
        self._timelines[request_id] = self._open[request_id] = timeline
        while len(self._timelines) > _KEPT:
            forgotten, _ = self._timelines.popitem(last=False)
            self._open.pop(forgotten, None)

    def observe(self, step: StepResult) -> None:
        if not self._open:
            return
        for chunk in step.batch.chunks:
            timeline = self._open.get(chunk.sequence.id)
            if timeline is None:
                continue
            at = self._clock() - timeline.received
            is_first = not timeline.kv
            if is_first:
                timeline.events.append({"event": "scheduled", "at_s": at - step.seconds})
            timeline.kv.append((at, chunk.end))
            if chunk.count > 1 or chunk.end <= len(chunk.sequence.prompt):
                cached = chunk.start if is_first else 0
                timeline.events.append(
                    {"event": "prefill", "at_s": at, "cached_tokens": cached, "computed_tokens": chunk.count}
                )
        for output in step.outputs:
            self._observe_output(output.sequence.id, output.sequence.num_output, output.finish_reason is not None)

    def close(self, request_id: str) -> None:
        """The request has left the engine, finished or not."""
        self._open.pop(request_id, None)

    def get(self, request_id: str) -> dict[str, Any] | None:
        timeline = self._timelines.get(request_id)
        return None if timeline is None else {"events": list(timeline.events), "kv": list(timeline.kv)}

    def _observe_output(self, request_id: str, num_output: int, finished: bool) -> None:
        timeline = self._open.get(request_id)
        if timeline is None:
            return
        at = self._clock() - timeline.received
        if num_output == 1:
            timeline.events.append({"event": "first_token", "at_s": at})
        if finished:
            timeline.events.append({"event": "done", "at_s": at, "output_tokens": num_output})
            self.close(request_id)
