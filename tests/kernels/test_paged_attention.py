from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from kernels import reference
from kernels.base import Kernels

LENGTHS = [1, 15, 16, 17, 31, 33, 200]


@dataclass(frozen=True)
class Case:
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    page_table: Tensor
    row_seq: Tensor
    row_len: Tensor

    def run(self, on: Kernels) -> Tensor:
        scale = self.q.shape[-1] ** -0.5
        return on.paged_attention(
            self.q, self.k_cache, self.v_cache, self.page_table, self.row_seq, self.row_len, scale
        )

    def rows(self, rows: Tensor | list[int]) -> "Case":
        return replace(self, q=self.q[rows], row_seq=self.row_seq[rows], row_len=self.row_len[rows])


def make(
    rng: torch.Generator,
    lengths: list[int],
    chunks: list[int],
    shared: int = 0,
    kv_heads: int = 3,
    group: int = 3,
    d: int = 64,
) -> Case:
    """Sequence s has lengths[s] tokens, its last chunks[s] are queries; all have their first `shared` pages in common.

    Slots that no sequence has written hold NaN, so that reading one shows.
    """
    pages = [-(-length // 16) for length in lengths]
    table = torch.full((len(lengths), max(pages) + 1), -1, dtype=torch.int32)
    free = torch.randperm(sum(pages) + 3, generator=rng).int()
    k_cache = torch.full((len(free), kv_heads, d, 16), float("nan"))
    v_cache = torch.full((len(free), kv_heads, 16, d), float("nan"))
    start = 0
    for s, (length, count) in enumerate(zip(lengths, pages, strict=True)):
        table[s, :count] = free[start : start + count]
        table[s, : min(shared, count)] = table[0, : min(shared, count)]
        start += count
        for t in range(length):
            page = int(table[s, t // 16])
            k_cache[page, :, :, t % 16] = torch.randn(kv_heads, d, generator=rng)
            v_cache[page, :, t % 16] = torch.randn(kv_heads, d, generator=rng)
    row_seq = torch.cat([torch.full((chunk,), s) for s, chunk in enumerate(chunks)]).int()
    row_len = torch.cat([torch.arange(n - c, n) + 1 for n, c in zip(lengths, chunks, strict=True)]).int()
    q = torch.randn(len(row_seq), kv_heads * group, d, generator=rng)
    return Case(q, k_cache, v_cache, table, row_seq, row_len)


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


def mixed(rng: torch.Generator) -> Case:
    """Decodes with a shared prefix, two chunks (one of them over that prefix too) and a lone short sequence."""
    return make(rng, [70, 65, 90, 200, 81, 33, 5], [1, 1, 1, 40, 20, 33, 1], shared=4)


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
    exact = replace(case, q=case.q.double(), k_cache=case.k_cache.double(), v_cache=case.v_cache.double())
    assert_close(case.run(cpu).double(), exact.run(reference), atol=5e-4, rtol=0)


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
        replace(case, k_cache=case.v_cache),
        replace(case, row_len=case.row_len.long()),
        replace(case, page_table=case.page_table[:, ::2]),
    ):
        with pytest.raises(AssertionError):
            wrong.run(cpu)
