"""report.html of a replay: one page that needs nothing else, in the style of loadtest/page.py."""

from collections.abc import Sequence
from html import escape

from loadtest import table
from loadtest.page import document, section
from loadtest.plots import ttft_ecdf
from loadtest.replay import plots
from loadtest.replay.report import ROWS, ReplayReport, agreement_cells, cells


def render_page(report: ReplayReport) -> str:
    policies = list(report.policies)
    parts = [
        f"<h1>{escape(headline(report))}</h1>",
        f"<p>{escape(summary(report))}</p>",
        _figures(report),
        section(
            "Time to first token, over time",
            "A dot a request, at the moment when it was due; the line is the median of a fortieth of the run.",
            plots.ttft_over_time(report.samples),
        ),
        section(
            "Time to first token",
            "Share of requests whose first token came within so many seconds, the warm-up apart.",
            ttft_ecdf({name: [s.ttft_s for s in samples if s.measured] for name, samples in report.samples.items()}),
        ),
        section(
            "Prompt tokens from caches",
            "The marks are one LRU cache as large as all replicas' together, the best that any cache of that size could"
            " give, and one without end.",
            plots.hits(report.policies),
        ),
        section(
            "Work of each replica, over time",
            "Prompt tokens that it had to compute, by when their requests were due: the darker the more.",
            plots.work(report.samples),
        ),
        _agreement(report),
        _method(report),
    ]
    return document(policies, parts)


def headline(report: ReplayReport) -> str:
    firsts = [
        f"{'–' if figures['ttft_mean_s'] is None else table.seconds(figures['ttft_mean_s'])} under {policy}"
        for policy, figures in report.policies.items()
    ]
    return f"First token after {', '.join(firsts)} (mean)"


def summary(report: ReplayReport) -> str:
    trace, fleet = report.trace, report.fleet
    return (
        f"{trace['requests']:,} requests of the trace {trace['name']}, {trace['prompt_tokens']:,} prompt tokens in all,"
        f" {trace['loop']} loop, on {len(fleet['replicas'])} replicas of {report.model} with"
        f" {fleet['kv_tokens']:,} KV tokens together. " + " ".join(report.notes)
    )


def _figures(report: ReplayReport) -> str:
    body = []
    for row in ROWS:
        indent = ' class="sub"' if row.label.startswith(" ") else ""
        values = "".join(f"<td>{cell}</td>" for cell in cells(report, row))
        body.append(
            f"<tr><td{indent}>{escape(row.label.strip())}<small>{escape(row.meaning)}</small></td>{values}</tr>"
        )
    heads = [f'<th style="color: var(--policy-{n})">{escape(name)}</th>' for n, name in enumerate(report.policies)]
    return f"<h2>Figures</h2>{_table(['<th></th>', *heads], body)}"


def _agreement(report: ReplayReport) -> str:
    if report.agreement is None:
        return ""
    body = [
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>"
        for line in agreement_cells(report.agreement)
    ]
    heads = [f"<th>{name}</th>" for name in ("", "measured", "simulated", "difference")]
    note = (
        "The same requests on a simulated fleet of the same shape. Hit: a difference; all else: a share of what was"
        f" measured. Latency of each way between gateway and replica: {table.seconds(report.agreement['latency_s'])}."
    )
    return section("Measured and simulated", note, _table(heads, body))


def _table(heads: Sequence[str], body: Sequence[str]) -> str:
    head, rows = "".join(heads), "".join(body)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _method(report: ReplayReport) -> str:
    trace = report.trace
    warm_up = f"{trace['warm_up_s']:g} s, {trace['warm_up_share']:.0%} of the requests; sent, and in no figure"
    facts = {
        "Order": " → ".join(report.order),
        "Rounds": f"{trace['rounds']}; figures are medians over rounds",
        "Trace": f"lengths / {trace['scale']}, rate × {trace['rate_scale']:g}, seed {trace['seed']}",
        "Warm-up": warm_up,
        "Load test ran on": "{cpu}, {cores} cores, {memory_gib} GiB, {os}".format(**report.machine),
        "Versions": ", ".join(f"{name} {version}" for name, version in report.versions.items()),
        "Started": report.started_at,
    }
    items = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    words = " ".join(f"<span>{escape(word)}</span>" for word in report.command.split(" "))
    return f"<h2>How it was measured</h2><dl>{items}<dt>Command</dt><dd><code>{words}</code></dd></dl>"
