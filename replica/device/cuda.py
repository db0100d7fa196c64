"""The device behind the engine's contract (`launch.py`): plans a batch, runs it, and fetches what it sampled."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import torch

from replica.device.plan import in_order, plan, sampled_of
from replica.device.runner import Runner
from replica.device.scored import Scores, begin_scores, score, scored_parts
from replica.device.transfer import current, fetch, new_event
from replica.sampler import sample
from replica.sequence import Chunk, Sequence
from replica.step import UNUSABLE_TOKEN, Sampled


@dataclass(frozen=True, slots=True)
class CudaLaunched:
    """Implements `Launched`."""

    sequences: list[Sequence]
    tokens: torch.Tensor
    on_host: list[int]
    """Which of the sequences are sampled here."""
    logits: torch.Tensor | None
    """Theirs."""
    scores: list[Scores]
    lacks_logprobs: bool
    done: torch.cuda.Event | None

    @property
    def needs_host(self) -> bool:
        return bool(self.on_host) or self.lacks_logprobs

    def result(self) -> list[tuple[Sequence, Sampled]]:
        if self.done is not None:
            self.done.synchronize()
        for scores in self.scores:
            scores.add()
        sampled = [Sampled(token) for token in self.tokens.tolist()]
        # Of the others the device has found out that nothing can be sampled, by the host no more than by itself.
        usable = [row for row in self.on_host if sampled[row].token != UNUSABLE_TOKEN]
        if self.logits is not None and usable:
            logits = self.logits[[self.on_host.index(row) for row in usable]]
            chosen = sample(logits, [self.sequences[row] for row in usable])
            for row, one in zip(usable, chosen, strict=True):
                sampled[row] = one
        return list(zip(self.sequences, sampled, strict=True))


class CudaDevice:
    """Implements `Device`. It works on a CPU's tensors as well, only that nothing is computed late there."""

    def __init__(self, runner: Runner, device: torch.device, cascade: bool = True) -> None:
        self._runner = runner
        self._device = device
        self._cascade = cascade
        self._sampled: dict[Sequence, int] = {}
        """Where the previous launch sampled for whom."""

    def launch(self, chunks: SequenceOf[Chunk]) -> CudaLaunched:
        # Each thread has a current device of its own, and it is the one that kernels are launched on.
        with current(self._device):
            return self._launch(in_order(chunks))

    def _launch(self, ordered: SequenceOf[Chunk]) -> CudaLaunched:
        begin_scores(ordered)
        step = plan(ordered, self._sampled, self._cascade)
        parts = scored_parts(ordered)
        scores: list[Scores] = []
        ran = self._runner.run(step, lambda index, logits: scores.append(score(parts[index], logits)))
        sequences = sampled_of(ordered)
        self._sampled = {sequence: row for row, sequence in enumerate(sequences)}
        return CudaLaunched(
            sequences=sequences,
            tokens=fetch(ran.tokens),
            on_host=step.on_host.tolist(),
            logits=None if ran.logits is None else fetch(ran.logits),
            scores=scores,
            lacks_logprobs=any(chunk.sequence.lacks_prompt_logprobs for chunk in ordered),
            # Behind all copies: the step's one synchronisation waits for it.
            done=self._event(),
        )

    def _event(self) -> torch.cuda.Event | None:
        if self._device.type != "cuda":
            return None
        event = new_event()
        event.record()
        return event
