"""Made-up batches of paged attention, in fp32 and int8, and what they should give."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.base import Kernels, KVPages

LENGTHS = [1, 15, 16, 17, 31, 33, 200]


@dataclass(frozen=True)
class Case:
    q: Tensor
    kv: KVPages
    page_table: Tensor
    row_seq: Tensor
    row_len: Tensor
    window: int = 0

    def run(self, on: Kernels) -> Tensor:
        scale = self.q.shape[-1] ** -0.5
        return on.paged_attention(self.q, self.kv, self.page_table, self.row_seq, self.row_len, scale, self.window)

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
    return Case(q, KVPages(k_cache, v_cache), table, row_seq, row_len)


def exact(case: Case) -> Tensor:
    """Row by row, in fp64."""
    out = torch.zeros_like(case.q, dtype=torch.float64)
    group = case.q.shape[1] // case.kv.kv_heads
    for t, (s, n) in enumerate(zip(case.row_seq.tolist(), case.row_len.tolist(), strict=True)):
        tokens = torch.arange(max(0, n - case.window) if case.window else 0, n)
        page, offset = case.page_table[s, tokens // 16].long(), tokens % 16
        k = case.kv.keys[page, :, :, offset].double().repeat_interleave(group, 1)
        v = case.kv.values[page, :, offset].double().repeat_interleave(group, 1)
        scores = torch.einsum("hd,nhd->hn", case.q[t].double(), k) * case.q.shape[-1] ** -0.5
        out[t] = torch.einsum("hn,nhd->hd", scores.softmax(-1), v)
    return out


def mixed(rng: torch.Generator) -> Case:
    """Decodes with a shared prefix, two chunks (one of them over that prefix too) and a lone short sequence."""
    return make(rng, [70, 65, 90, 200, 81, 33, 5], [1, 1, 1, 40, 20, 33, 1], shared=4)


def in_int8(case: Case, rng: torch.Generator) -> Case:
    """The case with its cache quantised; slots that no sequence has written hold wild bytes and NaN scales."""
    pages, heads, d = case.kv.num_pages, case.kv.kv_heads, case.kv.head_dim
    k, v = case.kv.keys.transpose(2, 3), case.kv.values
    scales = torch.stack([part.abs().amax(-1) / 127 for part in (k, v)], dim=2)
    written = ~scales.isnan()
    wild = torch.randint(256, (2, pages, heads, 16, d), generator=rng)
    k8 = torch.where(written[:, :, 0, :, None], (k / scales[:, :, 0, :, None]).round() + 128, wild[0])
    v8 = torch.where(written[:, :, 1, :, None], (v / scales[:, :, 1, :, None]).round(), wild[1] - 128)
    keys = k8.byte().view(pages, heads, 16, d // 4, 4).transpose(2, 3).contiguous()
    values = v8.char().view(pages, heads, 4, 4, d).transpose(3, 4).contiguous()
    return replace(case, kv=KVPages(keys, values, scales))
