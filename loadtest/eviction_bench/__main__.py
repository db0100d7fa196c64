"""`python -m loadtest.eviction_bench --traces DIR`: hit ratios of all eviction policies, and what is possible."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from loadtest.eviction_bench.replay import belady, hit_ratio, pooled, routed
from loadtest.eviction_bench.workloads import Workload, workloads
from replica.cache.eviction.registry import EVICTIONS


def main(
    traces: Annotated[Path, typer.Option(help="Folder with the recorded traces.")],
    only: Annotated[str, typer.Option(help="Workloads whose name holds this.")] = "",
) -> None:
    console = Console(width=120)
    names = ["lru", *(name for name in EVICTIONS if name != "lru")]
    table = Table("workload", "caches", *names, *(f"{name} / lru" for name in names[1:]), "belady")
    for workload in workloads(traces):
        if only in workload.name:
            for how, replay in (("pooled", pooled), ("routed", routed)):
                ratios = {name: hit_ratio(workload, replay(workload, name)) for name in names}
                bound = hit_ratio(workload, belady(workload)) if how == "pooled" else None
                table.add_row(*_row(workload, how, ratios, bound))
                console.print(*_row(workload, how, ratios, bound), sep="  ")
    console.print(table)


def _row(workload: Workload, how: str, ratios: dict[str, float], bound: float | None) -> list[str]:
    quotients = [
        f"{ratio / ratios['lru']:.3f}" if ratios["lru"] else "-" for name, ratio in ratios.items() if name != "lru"
    ]
    figures = [f"{ratio:.4f}" for ratio in ratios.values()]
    return [workload.name, how, *figures, *quotients, "" if bound is None else f"{bound:.4f}"]


if __name__ == "__main__":
    typer.run(main)
