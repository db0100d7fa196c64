from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from kernels import reference
from kernels.base import Kernels
from tests.kernels.attention_cases import LENGTHS, exact, make, mixed


@pytest.mark.parametrize("group", [1, 2, 3, 8, 50])
@pytest.mark.parametrize("d", [16, 64, 80])
def test_decodes_of_all_lengths(cpu: Kernels, rng: torch.Generator, group: int, d: int) -> None:
    case = make(rng, LENGTHS, [1] * len(LENGTHS), kv_heads=2, group=group, d=d)
    assert_close(case.run(cpu), case.run(reference))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("group", [1, 3, 8])
def test_causal_prefill(cpu: Kernels, rng: torch.Generator, length: int, group: int) -> None:
    case = make(rng, [length], [length], group=group, kv_heads=2)
    assert_close(case.run(cpu), case.run(reference))


def test_mixed_batch(cpu: Kernels, rng: torch.Generator) -> None:
    case = mixed(rng)
    assert_close(case.run(cpu), case.run(reference))


def test_row_is_independent_of_batch_order_and_threads(cpu: Kernels, rng: torch.Generator) -> None:
    case = mixed(rng)
    together = case.run(cpu)
    alone = torch.cat([case.rows([t]).run(cpu) for t in range(len(case.row_seq))])
    assert torch.equal(together, alone)
    order = torch.randperm(len(case.row_seq), generator=rng)
    assert torch.equal(case.rows(order).run(cpu), together[order])
    cpu.set_num_threads(2)
    threaded = case.run(cpu)
    cpu.set_num_threads(1)
    assert torch.equal(threaded, together)


@pytest.mark.parametrize("window", [1, 15, 16, 17, 63, 64, 65, 500])
def test_window(cpu: Kernels, rng: torch.Generator, window: int) -> None:
    """A tile's rows start in different pages, and in different spans of pages."""
    case = replace(mixed(rng), window=window)
    out = case.run(cpu)
    assert_close(out.double(), exact(case), atol=1e-5, rtol=1e-4)
    assert_close(case.run(reference), out)
    alone = torch.cat([case.rows([t]).run(cpu) for t in range(len(case.row_seq))])
    assert torch.equal(out, alone)


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_pages_before_the_window_are_never_read(cpu: Kernels, rng: torch.Generator, name: str) -> None:
    case = replace(make(rng, [100, 70], [3, 1]), window=20)
    case.page_table[0, : (98 - 20) // 16] = -1
    case.page_table[1, : (70 - 20) // 16] = -1
    assert_close(case.run({"cpu": cpu, "reference": reference}[name]).double(), exact(case), atol=1e-5, rtol=1e-4)
    case.page_table[0, (98 - 20) // 16] = -1
    with pytest.raises(IndexError):
        case.run(cpu)


@pytest.mark.parametrize("chunk", [1, 7, 16, 50])
def test_chunking_changes_no_bit(cpu: Kernels, rng: torch.Generator, chunk: int) -> None:
    case = make(rng, [200], [200])
    parts = [case.rows(rows).run(cpu) for rows in torch.arange(200).split(chunk)]  # type: ignore[no-untyped-call]
    assert torch.equal(torch.cat(parts), case.run(cpu))


def test_large_scores_dont_overflow(cpu: Kernels, rng: torch.Generator) -> None:
    """Scores reach about 200, where a plain exp is infinite from 89 on.

    The oracle is fp64: weights are as wrong as scores are, absolutely, so two fp32 results may be 1.3e-4 apart (in 40
    seeds either was within 7e-5 of fp64).
    """
    case = make(rng, [200, 40], [20, 1])
    case = replace(case, q=case.q * 50)
    assert_close(case.run(cpu).double(), exact(case), atol=5e-4, rtol=0)


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_length_zero_gives_zeros(cpu: Kernels, rng: torch.Generator, name: str) -> None:
    case = make(rng, [20, 20], [2, 1])
    case.row_len[1] = 0
    out = case.run({"cpu": cpu, "reference": reference}[name])
    assert not out[1].any() and out[[0, 2]].all()


@pytest.mark.parametrize(
    ("field", "value"),
    [("row_seq", -1), ("row_seq", 2), ("row_len", -1), ("row_len", 49), ("page_table", -1), ("page_table", 99)],
)
def test_out_of_range_is_an_index_error(cpu: Kernels, rng: torch.Generator, field: str, value: int) -> None:
    case = make(rng, [20, 20], [2, 1])
    getattr(case, field).view(-1)[0] = value
    with pytest.raises(IndexError):
        case.run(cpu)


def test_wrong_arguments_are_refused(cpu: Kernels, rng: torch.Generator) -> None:
    case = make(rng, [20, 20], [2, 1])
    for wrong in (
        replace(case, q=case.q[:, :8]),
        replace(case, window=-1),
        replace(case, row_len=case.row_len.long()),
        replace(case, page_table=case.page_table[:, ::2]),
    ):
        with pytest.raises(AssertionError):
            wrong.run(cpu)
