"""Padding to the size of a graph, with a stand-in for graphs: the recorded call itself, over the same tensors."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from replica.device.graphs import DecodeGraphs, batch_sizes
from replica.device.inputs import Inputs, StaticInputs
from replica.device.plan import plan
from replica.sequence import Chunk
from tests.device_engines import make_runner
from tests.replica.device.test_plan import sequence

CPU = torch.device("cpu")


def test_sizes() -> None:
    assert batch_sizes(1) == [1]
    assert batch_sizes(3) == [1, 2, 3]
    assert batch_sizes(8) == [1, 2, 4, 8]
    assert batch_sizes(20) == [1, 2, 4, 8, 16, 20]
    assert len(batch_sizes(256)) == 35 and batch_sizes(256)[-1] == 256


def test_a_batch_is_padded_with_rows_that_write_and_see_nothing() -> None:
    seen: list[tuple[list[int], ...]] = []

    def forward(inputs: Inputs) -> torch.Tensor:
        batch = inputs.batch
        assert inputs.take is not None and batch.decodes is not None
        parts = (inputs.tokens, inputs.take, batch.positions, batch.slots, batch.decodes.lens)
        seen.append(tuple(part.tolist() for part in parts))
        return batch.decodes.page_table.sum(1)

    graphs = DecodeGraphs(forward, StaticInputs(8, 4, CPU), [1, 2, 4, 8], cascade=False)
    captured: list[int] = []

    def capture(compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        captured.append(len(compute()))
        return compute

    graphs.capture(capture)
    assert captured == [8, 4, 2, 1]
    full = [Chunk(sequence(40, [n, n, n]), 39, 1) for n in range(1, 9)]
    graphs.run(plan(full, {}))
    seen.clear()
    waited = sequence(33, [7, 8, 9])
    waited.expect()
    chunks = [Chunk(sequence(3, [5]), 2, 1), Chunk(waited, 33, 1), Chunk(sequence(17, [1, 2]), 16, 1)]
    hidden = graphs.run(plan(chunks, {waited: 6}))
    assert hidden is not None and hidden.shape == (4,)
    assert seen == [([3, 0, 17, 0], [-1, 6, -1, -1], [2, 33, 16, 0], [82, 145, 32, -1], [3, 34, 17, 0])]


def test_what_no_graph_fits_is_left_to_others() -> None:
    graphs = DecodeGraphs(lambda inputs: inputs.tokens, StaticInputs(2, 4, CPU), [1, 2], cascade=False)
    graphs.capture(lambda compute: compute)
    assert graphs.run(plan([Chunk(sequence(5, [1]), 0, 5)], {})) is None
    assert graphs.run(plan([Chunk(sequence(5, [n]), 4, 1) for n in range(3)], {})) is None
    assert graphs.run(plan([Chunk(sequence(5, [n]), 4, 1) for n in range(2)], {})) is not None


@pytest.mark.parametrize("cascade", [False, True])
def test_replayed_steps_sample_what_eager_ones_do(tiny_folder: Path, cascade: bool) -> None:
    """Also where rows begin alike, and after a larger batch has left its rows behind."""
    eager, replayed = (
        make_runner(tiny_folder, 64, max_running=24, capture=capture) for capture in (None, lambda compute: compute)
    )
    shared = list(range(20))
    sequences = [sequence(330, [*shared, 20 + n]) for n in range(24)]
    for runner in (eager, replayed):
        runner.run(plan([Chunk(sequences[0], 0, 320)], {}))
        runner.run(plan([Chunk(one, 320, 9) for one in sequences], {}))
    for count in (24, 17, 3):
        step = plan([Chunk(one, 329, 1) for one in sequences[:count]], {}, cascade)
        assert (len(step.group_pages) > 0) == (cascade and count > 16)
        assert torch.equal(replayed.run(step).tokens, eager.run(step).tokens)
