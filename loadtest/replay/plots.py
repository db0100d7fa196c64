"""The plots of a replay; see loadtest/plots.py for how they get their colours."""

from collections.abc import Mapping, Sequence
from statistics import median

import matplotlib as mpl
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import LogLocator, NullLocator

from loadtest.metrics import Figures
from loadtest.plots import INK, MUTED, PALE, SETTINGS, WIDTH_IN, canvas, policy_color, svg
from loadtest.replay.report import Sample
from loadtest.table import percent, seconds

_BINS = 40
_MAX_REPLICAS = 32
_LIMITS = (("hit_lru_pool", "shared LRU"), ("hit_belady", "of that size"), ("hit_infinite", "of any size"))

Samples = Mapping[str, Sequence[Sample]]


def ttft_over_time(samples: Samples) -> str:
    """A dot a request, and each policy's median over a fortieth of the run."""
    with mpl.rc_context(SETTINGS):
        drawing, axes = canvas(3.0)
        end = _end(samples)
        for number, items in enumerate(samples.values()):
            color = policy_color(number)
            axes.plot(
                [item.due_s for item in items],
                [item.ttft_s for item in items],
                ".",
                color=color,
                markersize=3,
                alpha=0.35,
            )
            binned = _binned(items, end)
            places = [(place + 0.5) * end / _BINS for place, inside in enumerate(binned) if inside]
            axes.plot(
                places, [median(item.ttft_s for item in inside) for inside in binned if inside], color=color, lw=2
            )
        warm = [item.due_s for items in samples.values() for item in items if not item.measured]
        if warm:
            axes.axvspan(0, max(warm), color=PALE, zorder=0)
            axes.text(
                max(warm), 1.0, "warm-up ", ha="right", va="top", color=MUTED, transform=axes.get_xaxis_transform()
            )
        axes.set_xlim(0, end)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: seconds(value))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylabel("TTFT")
        axes.set_xlabel("seconds since the run began")
        axes.grid(visible=True)
        return svg(drawing, "over-time", "TTFT over time, per policy")


def hits(policies: Mapping[str, Figures]) -> str:
    """A bar a policy: the share of prompt tokens from caches; marks where the limits are."""
    with mpl.rc_context(SETTINGS):
        drawing, axes = canvas(0.6 + 0.75 * len(policies))
        for number, figures in enumerate(policies.values()):
            axes.barh(number, 1, height=0.36, color=PALE)
            axes.barh(number, figures["hit"] or 0.0, height=0.36, color=policy_color(number))
            label = f"{percent(figures['hit'] or 0.0)} from cache"
            axes.text(0, number - 0.27, label, color=policy_color(number), va="bottom")
            for place, (name, meaning) in enumerate(_LIMITS):
                limit = figures.get(name)
                if limit is None:
                    continue
                axes.plot([limit, limit], [number - 0.18, number + 0.25], color=INK, linewidth=1.6)
                if number == len(policies) - 1:
                    axes.text(1, number + 0.33 + 0.17 * place, f"{meaning} {percent(limit)}", ha="right", va="top")
        axes.set_yticks(range(len(policies)), list(policies), color=INK, weight="bold")
        axes.set_ylim(len(policies) - 0.1, -0.6)
        axes.set_xlim(0, 1)
        axes.spines["bottom"].set_visible(False)
        axes.set_xticks([])
        return svg(drawing, "hits", "Share of prompt tokens from caches, per policy")


def work(samples: Samples) -> str:
    """A row a replica: the darker, the more prompt tokens it got to compute in a fortieth of the run."""
    with mpl.rc_context(SETTINGS):
        end = _end(samples)
        grids = {policy: _work(items, end) for policy, items in samples.items()}
        highest = max((value for grid in grids.values() for row in grid.values() for value in row), default=0) or 1
        heights = [len(grid) + 0.5 for grid in grids.values()]
        drawing = Drawing(figsize=(WIDTH_IN, 0.6 + 0.17 * sum(heights) + 0.3 * len(grids)), layout="constrained")
        panels = drawing.subplots(len(grids), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})
        edges = [place * end / _BINS for place in range(_BINS + 1)]
        for number, (policy, grid) in enumerate(grids.items()):
            axes, color = panels[number][0], to_rgb(policy_color(number))
            shades = LinearSegmentedColormap.from_list(policy, [(*color, 0.04), (*color, 1.0)])
            axes.pcolormesh(edges, range(len(grid) + 1), list(grid.values()), cmap=shades, vmin=0, vmax=highest, lw=0.4)
            axes.set_yticks([place + 0.5 for place in range(len(grid))], list(grid))
            axes.invert_yaxis()
            axes.set_title(policy, loc="left", fontsize=10.5, color=policy_color(number), weight="bold")
        panels[-1][0].set_xlabel("seconds since the run began")
        return svg(drawing, "work", "Prompt tokens computed by each replica over time")


def _end(samples: Samples) -> float:
    return max((item.due_s for items in samples.values() for item in items), default=0.0) or 1.0


def _binned(items: Sequence[Sample], end: float) -> list[list[Sample]]:
    bins: list[list[Sample]] = [[] for _ in range(_BINS)]
    for item in items:
        bins[min(_BINS - 1, int(item.due_s / end * _BINS))].append(item)
    return bins


def _work(items: Sequence[Sample], end: float) -> dict[str, list[int]]:
    """By replica, those that had the most if there are many."""
    totals: dict[str, int] = {}
    for item in items:
        totals[item.replica] = totals.get(item.replica, 0) + item.computed
    busiest = sorted(sorted(totals, key=lambda name: -totals[name])[:_MAX_REPLICAS])
    grid = {name: [0] * _BINS for name in busiest}
    for place, inside in enumerate(_binned(items, end)):
        for item in inside:
            if item.replica in grid:
                grid[item.replica][place] += item.computed
    return grid
