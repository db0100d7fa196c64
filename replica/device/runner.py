"""A model on a device: from a step's plan to its tokens, without waiting for them.

Everything is in one stream, in the order in which it is launched. So a page that is freed and given to another sequence
is written only after all earlier steps have read it, and the tokens of a step are there when the next one takes them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

import kernels.device
from replica.device.graphs import Capture, DecodeGraphs, batch_sizes
from replica.device.inputs import Inputs, StaticInputs, inputs_of
from replica.device.plan import StepPlan
from replica.device.pool import DevicePool
from replica.device.transfer import send
from replica.model.decoder import Decoder

Scored = Callable[[int, torch.Tensor], None]
"""Is given the how manieth of `StepPlan.scored` it is, and its logits, on the device."""


def ignore(index: int, logits: torch.Tensor) -> None: ...


@dataclass(frozen=True, slots=True)
class Ran:
    """On the device, and perhaps not yet computed."""

    tokens: torch.Tensor
    """int64 [R]; -1 where the logits hold NaN, +inf or nothing but -inf and the row was drawn."""
    logits: torch.Tensor | None
    """Of `StepPlan.on_host`."""


class Runner(Protocol):
    def run(self, plan: StepPlan, on_scored: Scored = ignore) -> Ran: ...


class DeviceRunner:
    def __init__(
        self,
        model: Decoder,
        pool: DevicePool,
        device: torch.device,
        max_running: int,
        max_pages: int,
        capture: Capture | None = None,
        cascade: bool = True,
    ) -> None:
        """`max_pages`: of one sequence. Without `capture` every step is launched kernel by kernel."""
        self._model = model
        self._pool = pool
        self._device = device
        self._sampled = torch.zeros(max_running, dtype=torch.int64, device=device)
        self._graphs: DecodeGraphs | None = None
        if capture is not None:
            inputs = StaticInputs(max_running, max_pages, device)
            graphs = DecodeGraphs(self._forward, inputs, batch_sizes(max_running), cascade)
            with torch.inference_mode():
                graphs.capture(capture)
            self._graphs = graphs

    @torch.inference_mode()
    def run(self, plan: StepPlan, on_scored: Scored = ignore) -> Ran:
        hidden = None if self._graphs is None else self._graphs.run(plan)
        if hidden is None:
            hidden = self._forward(inputs_of(plan, self._device))
        for index, (start, end) in enumerate(plan.scored.tolist()):
            on_scored(index, self._model.logits(hidden[start:end]))
        if not len(plan.rows):
            return Ran(self._sampled[:0], None)
        return self._sample(plan, self._model.logits(self._rows_of(plan, hidden)))

    def _forward(self, inputs: Inputs) -> torch.Tensor:
        tokens = inputs.tokens.long()
        if inputs.take is not None:
            # A row without usable logits has sampled -1, which the host is about to find out; until then it is a 0.
            known = self._sampled[inputs.take.clamp(min=0)].clamp(min=0)
            tokens = torch.where(inputs.take >= 0, known, tokens)
        return self._model.forward(tokens, inputs.batch, self._pool)

    def _rows_of(self, plan: StepPlan, hidden: torch.Tensor) -> torch.Tensor:
        count = len(plan.rows)
        if plan.rows[-1] == count - 1:
            return hidden[:count]
        (rows,) = send([plan.rows], self._device)
        return hidden[rows]

    def _sample(self, plan: StepPlan, logits: torch.Tensor) -> Ran:
        for_host = None
        if len(plan.on_host):
            (rows,) = send([plan.on_host], self._device)
            for_host = logits[rows].float()
        if plan.draws is None:
            tokens = kernels.device.argmax(logits)
        else:
            draws = plan.draws
            settings = send([draws.temperature, draws.top_k, draws.top_p, draws.min_p, draws.points], self._device)
            tokens = kernels.device.draw(logits, *settings)
        self._sampled[: len(tokens)].copy_(tokens)
        return Ran(tokens, for_host)
