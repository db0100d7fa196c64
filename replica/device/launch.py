"""What the engine asks of a device: to launch a batch now, and to give its tokens when asked, maybe a step later.

A sequence whose last token is still on the device has `num_pending == 1`, and an id without meaning at the end of its
`tokens`. The device remembers where its previous launch sampled for which sequence, and takes the id from there.

All that a device does is on one stream, in the order of its launches. So a page may change hands as soon as the batches
that use it are launched: whoever gets it writes it after all earlier reads.
"""

from collections.abc import Sequence as SequenceOf
from typing import Protocol

from replica.sequence import Chunk, Sequence
from replica.step import Sampled


class Launched(Protocol):
    """A batch on its way. Results are asked for in the order of the launches, at most two at a time are outstanding."""

    @property
    def needs_host(self) -> bool:
        """The next batch mustn't be planned before this one's result is there: some of its tokens are chosen by the
        host, from what it knows of the sequence, or prompt logprobs come with it. The sequences don't change until then
        but in that an earlier launch's tokens take the place of their placeholders."""
        ...

    def result(self) -> list[tuple[Sequence, Sampled]]:
        """The next token of each sequence whose chunk reached its end, and all prompt logprobs. Waits for the device:
        the one synchronisation of a step. `UNUSABLE_TOKEN` where a row's logits can't be sampled from."""
        ...


class Device(Protocol):
    def launch(self, chunks: SequenceOf[Chunk]) -> Launched:
        """Doesn't wait. All that it needs of pages and tokens is copied before it returns: both change hands after.

        A row may follow one that turns out to be unusable, or the end of an answer: its result is dropped, but it must
        do no harm, so `UNUSABLE_TOKEN` is no index into the embedding."""
        ...


def needs_host(sequence: Sequence) -> bool:
    """Its next token is chosen by `replica.sampler.sample`. Asked at the launch."""
    params = sequence.params
    return (
        sequence.constraint is not None
        or params.logprobs is not None
        or bool(params.logit_bias)
        or params.has_penalties
        or sequence.forbids_end
    )
