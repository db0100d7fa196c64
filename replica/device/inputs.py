"""A step's plan as tensors: made for it alone, or fixed ones that a recorded graph reads."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.device.base import PrefixGroups
from replica.device.batch import Decodes, DeviceBatch, Prefills
from replica.device.groups import MAX_GROUPS
from replica.device.plan import StepPlan
from replica.device.transfer import send

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Inputs:
    tokens: torch.Tensor
    take: torch.Tensor | None
    """None: all ids are in `tokens`."""
    batch: DeviceBatch


def inputs_of(plan: StepPlan, device: torch.device) -> Inputs:
    n = plan.num_decodes
    # Each part is sent as an array of its own, so that none begins at an odd address.
    tokens, take, positions, slots, table, lens, rest_table, rest_lens, query_start, start, pages, row_pages = send(
        [
            plan.tokens, plan.take, plan.positions, plan.slots, plan.page_table[:n], plan.lens[:n],
            plan.page_table[n:], plan.lens[n:], plan.query_start, plan.group_start, plan.group_pages, _row_pages(plan),
        ],
        device,
    )  # fmt: skip
    groups = PrefixGroups(start, pages, row_pages) if len(plan.group_pages) else None
    return Inputs(
        tokens=tokens,
        take=take if (plan.take >= 0).any() else None,
        batch=DeviceBatch(
            positions=positions,
            slots=slots,
            decodes=Decodes(table, lens, groups) if n else None,
            prefills=None if plan.is_decode else Prefills(rest_table, rest_lens, query_start, plan.max_query),
        ),
    )


class StaticInputs:
    """Tensors at fixed addresses, of the largest decode batch; a graph of a smaller one reads their first rows."""

    def __init__(self, max_rows: int, max_pages: int, device: torch.device) -> None:
        self._device = device
        self._rows = [torch.zeros(max_rows, dtype=torch.int32, device=device) for _ in range(6)]
        self._page_table = torch.zeros(max_rows, max_pages, dtype=torch.int32, device=device)
        self._group_start = torch.zeros(MAX_GROUPS + 1, dtype=torch.int32, device=device)
        self._group_pages = torch.zeros(MAX_GROUPS, dtype=torch.int32, device=device)

    def view(self, size: int, cascade: bool) -> Inputs:
        tokens, take, positions, slots, lens, row_pages = (part[:size] for part in self._rows)
        groups = PrefixGroups(self._group_start, self._group_pages, row_pages) if cascade else None
        decodes = Decodes(self._page_table[:size], lens, groups)
        return Inputs(tokens, take, DeviceBatch(positions, slots, decodes, None))

    def fill(self, plan: StepPlan, size: int) -> None:
        """The first `size` rows: those of the plan, then padding. Of the page table only what is read is written."""
        arrays = [
            _padded(plan.tokens, size, 0),
            _padded(plan.take, size, -1),
            _padded(plan.positions, size, 0),
            _padded(plan.slots, size, -1),
            _padded(plan.lens, size, 0),
            _padded(_row_pages(plan), size, 0),
        ]
        cascade = len(plan.group_pages) > 0
        groups = [_padded(plan.group_start, MAX_GROUPS + 1, plan.num_tokens), _padded(plan.group_pages, MAX_GROUPS, 0)]
        *rows, table, start, pages = send([*arrays, plan.page_table, *groups], self._device)
        # Foreach: one launch instead of one for each.
        torch._foreach_copy_([part[:size] for part in self._rows], rows)
        self._page_table[: table.shape[0], : table.shape[1]].copy_(table)
        if cascade:
            torch._foreach_copy_([self._group_start, self._group_pages], [start, pages])


def _row_pages(plan: StepPlan) -> Ints:
    """For each decode the shared pages of its group; zeros without groups."""
    if not len(plan.group_pages):
        return np.zeros(plan.num_decodes, np.int32)
    return np.repeat(plan.group_pages, np.diff(plan.group_start))


def _padded(values: Ints, size: int, by: int) -> Ints:
    whole = np.full(size, by, np.int32)
    whole[: len(values)] = values
    return whole
