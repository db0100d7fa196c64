"""The report's plots, as SVG for inlining in a page.

Colours are CSS variables of the page, so that one drawing serves light and dark. matplotlib knows no variables: it
draws with marker colours, which are replaced in its SVG. Text stays text, in the page's own font.
"""

import io
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from loadtest.metrics import Figures, percentile
from loadtest.table import count, percent, seconds

WIDTH_IN = 7.6
_LABEL_COLUMNS = 3
INK, MUTED, _GRID, PALE = "#010101", "#020202", "#030303", "#040404"
_VARIABLES = {INK: "--ink", MUTED: "--muted", _GRID: "--grid", PALE: "--pale"}
SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ryokan",
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "text.color": INK,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.major.pad": 6,
    "ytick.major.pad": 6,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "axes.grid.axis": "y",
}

Policies = Mapping[str, Figures]


def policy_color(number: int) -> str:
    """Marks where the page's variable --policy-NUMBER goes."""
    return f"#aa00{number:02x}"


def ttft_ecdf(samples: Mapping[str, Sequence[float]]) -> str:
    """Share of requests whose first token came within so many seconds, one line a policy."""
    with mpl.rc_context(SETTINGS):
        drawing, axes = canvas(3.3)
        longest = max((max(values) for values in samples.values() if values), default=1.0)
        for number, (policy, values) in enumerate(samples.items()):
            if not values:
                continue
            color = policy_color(number)
            axes.ecdf(values, color=color, linewidth=2.2)
            p50 = percentile(values, 50) or 0.0
            axes.plot([p50], [0.5], "o", color=color, markersize=6)
            row, column = divmod(number, _LABEL_COLUMNS)
            height = 1.06 + 0.09 * ((len(samples) - 1) // _LABEL_COLUMNS - row)
            label = f"{policy} {seconds(p50)}"
            axes.text(column / _LABEL_COLUMNS, height, label, color=color, weight="bold", transform=axes.transAxes)
        axes.set_xlim(0, longest * 1.02)
        axes.set_ylim(0, 1.005)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["", "25 %", "50 %", "75 %", "100 %"])
        axes.set_xlabel("TTFT, seconds")
        axes.grid(visible=True)
        return svg(drawing, "ecdf", "Distribution of TTFT per policy")


def prompt_tokens(policies: Policies) -> str:
    """A bar a policy: prompt tokens from cache, then those computed, and a mark where the limit of the first is."""
    with mpl.rc_context(SETTINGS):
        drawing, axes = canvas(0.55 + 0.85 * len(policies))
        total = max(figures["prompt_tokens"] for figures in policies.values())
        for number, figures in enumerate(policies.values()):
            cached, computed = figures["cached_tokens_delivered"], figures["prompt_tokens_computed"]
            limit, share = figures["cached_tokens_limit"], figures["cached_delivered_over_limit"]
            axes.barh(number, cached, height=0.36, color=policy_color(number))
            axes.barh(number, computed, height=0.36, left=cached, color=PALE)
            axes.plot([limit, limit], [number - 0.18, number + 0.27], color=INK, linewidth=1.6)
            of_limit = "" if share is None else f" ({percent(share)} of the limit)"
            axes.text(0, number - 0.29, f"{count(cached)} from cache{of_limit}", color=policy_color(number))
            axes.text(cached + computed, number - 0.29, f"{count(computed)} computed", color=MUTED, ha="right")
            if number == len(policies) - 1:
                axes.text(limit, number + 0.36, f"limit {count(limit)}", ha="center", va="top")
        axes.set_yticks(range(len(policies)), list(policies), color=INK, weight="bold")
        axes.set_ylim(len(policies) - 0.25, -0.6)
        axes.set_xlim(0, total)
        axes.spines["bottom"].set_visible(False)
        axes.set_xticks([])
        return svg(drawing, "tokens", "Prompt tokens from cache and computed, per policy")


def spread(policies: Policies) -> str:
    """Requests and output tokens of each replica, and each policy's mean as a thin line."""
    with mpl.rc_context(SETTINGS):
        replicas = list(dict.fromkeys(name for f in policies.values() for name in f["requests_by_replica"]))
        rows = len(policies) * (len(replicas) + 0.8)
        drawing = Drawing(figsize=(WIDTH_IN, 0.5 + 0.25 * rows), layout="constrained")
        panels = drawing.subplots(1, 2, sharey=True)
        for axes, figure, title in zip(
            panels, ("requests_by_replica", "output_tokens_by_replica"), ("Requests", "Output tokens"), strict=True
        ):
            _spread_panel(axes, policies, replicas, figure)
            axes.set_title(title, loc="left", fontsize=10.5, color=MUTED)
        return svg(drawing, "spread", "Requests and output tokens of each replica")


def _spread_panel(axes: Axes, policies: Policies, replicas: Sequence[str], figure: str) -> None:
    ticks: list[float] = []
    highest = max(max(figures[figure].values(), default=0) for figures in policies.values()) or 1
    for number, figures in enumerate(policies.values()):
        top = number * (len(replicas) + 0.8)
        values = [figures[figure].get(replica, 0) for replica in replicas]
        places = [top + place for place in range(len(replicas))]
        axes.barh(places, values, height=0.66, color=policy_color(number))
        average = sum(values) / len(values)
        for place, value in zip(places, values, strict=True):
            # A label must not lie on the line of the mean.
            clear_of = max(value, average) if value > average * 0.75 else value
            axes.text(clear_of + highest * 0.02, place, count(value), va="center")
        axes.plot([average, average], [top - 0.5, places[-1] + 0.5], color=INK, linewidth=1)
        ticks += places
    axes.set_yticks(ticks, [f"{policy} · {replica}" for policy in policies for replica in replicas], color=INK)
    axes.set_xlim(0, highest * 1.2)
    axes.set_ylim(max(ticks) + 0.7, -0.7)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks([])


def timeline(events: Sequence[Mapping[str, Any]], color: str) -> str:
    """One row per step between two events of the traced request, each where it lies in time."""
    with mpl.rc_context(SETTINGS):
        steps = list(pairwise(events))
        drawing, axes = canvas(0.7 + 0.3 * len(steps))
        end = max(event["at_s"] for event in events) or 1.0
        for place, (before, after) in enumerate(steps):
            start, length = before["at_s"], after["at_s"] - before["at_s"]
            axes.barh(place, max(length, end * 0.003), left=start, height=0.56, color=color)
            before_bar = start + length > end * 0.8 and start > end * 0.2
            axes.text(
                start - end * 0.01 if before_bar else max(start + length, start + end * 0.003) + end * 0.01,
                place,
                seconds(length),
                va="center",
                ha="right" if before_bar else "left",
            )
        names = [_phase(before, after) for before, after in steps]
        axes.set_yticks(range(len(steps)), names, color=INK)
        axes.set_ylim(len(steps) - 0.4, -0.6)
        axes.set_xlim(0, end * 1.12)
        axes.set_xlabel("seconds since the gateway received the request")
        axes.grid(visible=True, axis="x")
        return svg(drawing, "timeline", "Timeline of one request")


_PHASES = {
    "tokenised": "receive and tokenise",
    "routed": "choose a replica",
    "dispatched": "take a lease",
    "queued": "send to the replica",
    "scheduled": "wait in its queue",
    "first_token": "hand out the first token",
    "first_byte": "return to the gateway",
}


def _phase(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What happens until the event `after`; the gateway and the replica both say when they are done."""
    name = str(after["event"])
    if name == "prefill":
        cached = f", {count(after['cached_tokens'])} cached" if after.get("cached_tokens") else ""
        return f"prefill: {count(after['computed_tokens'])} tokens{cached}"
    if name == "done" and before["event"] == "done":
        return "relay the end"
    if name == "done":
        steps = f": {count(after['output_tokens'] - 1)} steps" if after.get("output_tokens") else ""
        return f"decode{steps}"
    return _PHASES.get(name, f"{before['event']} → {name}").replace("_", " ")


def kv_entries(kv: Sequence[Sequence[float]], prompt_tokens: int, cached_tokens: int, color: str) -> str:
    """KV entries a layer that the traced request holds: a jump at prefill, then one more each decode step."""
    with mpl.rc_context(SETTINGS):
        drawing, axes = canvas(2.7)
        times = [0.0, *(point[0] for point in kv)]
        entries = [0.0, *(point[1] for point in kv)]
        axes.fill_between(times, entries, step="post", color=PALE, linewidth=0)
        axes.step(times, entries, where="post", color=color, linewidth=2.2)
        width = max(times) or 1.0
        first, last = next((point for point in kv if point[1] >= prompt_tokens), kv[0]), kv[-1]
        axes.text(first[0], first[1] * 1.06, f"{count(first[1])} after prefill", color=color, weight="bold")
        axes.text(last[0], last[1] * 1.05, f"{count(last[1])} at the end", color=color, weight="bold", ha="right")
        if cached_tokens:
            axes.plot(
                [first[0], last[0]], [cached_tokens, cached_tokens], color=INK, linewidth=1, linestyle=(0, (4, 3))
            )
            axes.text(
                first[0] + width * 0.01, cached_tokens * 0.96, f"{count(cached_tokens)} came from the cache", va="top"
            )
        axes.set_xlim(0, width)
        axes.set_ylim(0, max(entries) * 1.2)
        axes.set_xlabel("seconds since the gateway received the request")
        axes.grid(visible=True)
        return svg(drawing, "kv", "KV entries of one request over time")


def canvas(height_in: float) -> tuple[Drawing, Axes]:
    drawing = Drawing(figsize=(WIDTH_IN, height_in), layout="constrained")
    return drawing, drawing.subplots()


def svg(drawing: Drawing, name: str, title: str) -> str:
    """The bare <svg> element, scaled by the page, its ids made unique to the plot."""
    buffer = io.StringIO()
    drawing.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    drawn = buffer.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", drawn)
    drawn = re.sub(
        r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', rf'<svg class="plot" \1 role="img" aria-label="{title}">', drawn
    )
    drawn = drawn.replace("'DejaVu Sans'", "inherit-font").replace("inherit-font, ", "")
    for marker, variable in _VARIABLES.items():
        drawn = drawn.replace(marker, f"var({variable})")
    return re.sub(r"#aa00([0-9a-f]{2})", lambda match: f"var(--policy-{int(match[1], 16)})", drawn)
