"""report.html: one page that needs nothing else, in light and dark."""

from collections.abc import Iterable
from html import escape
from typing import Any

from loadtest import plots, table
from loadtest.report import Report

_BASELINE_COLOR = ("#7d8590", "#8b949e")
_OURS_COLOR = ("#0f766e", "#2dd4bf")
_OTHER_COLORS = (
    ("#b45309", "#f59e0b"),
    ("#6d28d9", "#a78bfa"),
    ("#1d4ed8", "#60a5fa"),
    ("#be185d", "#f472b6"),
    ("#4d7c0f", "#a3e635"),
)
"""Light, dark."""

_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1c2024; --muted: #5f6872; --grid: #e3e6e9; --pale: #e8ebee;
  --card: #f6f7f8; LIGHT }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --ink: #e6e9ec; --muted: #9aa4ae; --grid: #2b3137;
  --pale: #2f363d; --card: #1b1f23; DARK } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 50rem; margin: 0 auto; padding: 3rem 1.25rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0 0 .75rem; letter-spacing: -.01em; }
h2 { font-size: 1.15rem; margin: 3rem 0 .35rem; }
p { margin: .35rem 0 .9rem; } .note { color: var(--muted); } .bad { color: #d1242f; font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .94rem; }
th, td { padding: .38rem .5rem; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal; }
thead th { font-weight: 600; border-bottom: 2px solid var(--grid); }
td small { display: block; color: var(--muted); font-size: .82rem; line-height: 1.3; }
td.ours { font-weight: 600; } td.sub { padding-left: 1rem !important; }
svg.plot { display: block; width: 100%; height: auto; margin: .5rem 0; overflow: visible; }
svg.plot text { font-family: inherit !important; }
dl { display: grid; grid-template-columns: 9rem 1fr; gap: .3rem 1rem; margin: .75rem 0; font-size: .94rem; }
dt { color: var(--muted); } dd { margin: 0; overflow-wrap: anywhere; }
code { display: block; font: .86rem/1.6 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  background: var(--card); padding: .5rem .7rem; border-radius: 6px; }
code span { display: inline-block; max-width: 100%; }
"""


def render_page(report: Report) -> str:
    policies = list(report.policies)
    ours = policies.index(report.ratios["policy"])
    parts = [
        f"<h1>{escape(headline(report))}</h1>",
        f"<p>{escape(summary(report))}</p>",
        _failures(report),
        _figures(report, ours),
        section(
            "Time to first token",
            "Share of requests whose first token came within so many seconds; the dots are medians over all rounds."
            " Further left is better.",
            plots.ttft_ecdf({name: sample["ttft_s"] for name, sample in report.samples.items()}),
        ),
        section(
            "Prompt tokens: from cache, or computed again",
            "The mark is the limit: one endless cache, shared by the whole fleet, that computes each distinct block"
            " of 16 tokens once. No routing can deliver more.",
            plots.prompt_tokens(report.policies),
        ),
        section(
            "Load of each replica",
            "The thin line is the policy's mean. Cache hits are worth little if one replica does all the work.",
            plots.spread(report.policies),
        ),
        _request(report.request, plots.policy_color(ours)),
        _method(report),
    ]
    return document(policies, parts)


def document(policies: list[str], parts: Iterable[str]) -> str:
    """The page of those parts; the policies' colours are --policy-NUMBER in their order."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Ryokan: {escape(' and '.join(policies))}</title><style>{style(policies)}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def headline(report: Report) -> str:
    ours, baseline = report.ratios["policy"], report.ratios["baseline"]
    mine, its = report.policies[ours]["ttft_p50_s"], report.policies[baseline]["ttft_p50_s"]
    if ours == baseline:
        return f"First token after {table.seconds(mine)} (median) under {ours}"
    return f"First token after {table.seconds(mine)} under {ours}, {table.seconds(its)} under {baseline} (medians)"


def summary(report: Report) -> str:
    ours, baseline = report.ratios["policy"], report.ratios["baseline"]
    mine, its, load = report.policies[ours], report.policies[baseline], report.workload
    what = (
        f"{load['agents']} agents ask about {load['cities']} cities, {load['turns']} turns each, on"
        f" {len(mine['requests_by_replica'])} replicas of {report.model}."
    )
    share = mine["cached_delivered_over_limit"]
    cache = "" if share is None else f" {ours} took {table.percent(share)} of what any cache could give."
    if ours == baseline:
        return what + cache
    rates = [table.count(figures["throughput_tokens_per_s"]) for figures in (mine, its)]
    return (
        f"{what} {ours} computed {table.count(mine['prompt_tokens_computed'])} prompt tokens where {baseline} computed"
        f" {table.count(its['prompt_tokens_computed'])}, and the fleet put out {rates[0]} tokens a second instead of"
        f" {rates[1]}.{cache}"
    )


def _failures(report: Report) -> str:
    failed = report.requests_failed
    return f'<p class="bad">{failed} requests failed or were never sent.</p>' if failed else ""


def _figures(report: Report, ours: int) -> str:
    head = "".join(
        f'<th style="color: var(--policy-{number})">{escape(name)}</th>' for number, name in enumerate(report.policies)
    )
    rows = []
    for line in table.lines(report):
        label, meaning = line.row.label, escape(line.row.meaning)
        indent = ' class="sub"' if label.startswith(" ") else ""
        marks = [' class="ours"' if number == ours else "" for number in range(len(line.cells))]
        cells = "".join(f"<td{mark}>{cell}</td>" for mark, cell in zip(marks, line.cells, strict=True))
        rows.append(
            f"<tr><td{indent}>{escape(label.strip())}<small>{meaning}</small></td>{cells}<td>{line.ratio}</td></tr>"
        )
    return (
        '<h2>Figures</h2><div class="scroll"><table><thead><tr><th></th>'
        f"{head}<th>{escape(table.ratio_heading(report))}</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def section(title: str, note: str, plot: str) -> str:
    return f'<h2>{escape(title)}</h2><p class="note">{escape(note)}</p>{plot}'


def _request(request: dict[str, Any], color: str) -> str:
    """The worked example: one request's way, and the KV entries that it holds."""
    way = section(
        "One request's way through the system",
        f"A new question about a city whose notes are cached: {table.count(request['prompt_tokens'])} prompt tokens,"
        f" {table.count(request['cached_tokens'])} of them from the cache of {request['replica']};"
        f" first token after {table.seconds(request['ttft_s'])}, {request['output_tokens']} tokens after"
        f" {table.seconds(request['latency_s'])}.",
        plots.timeline(request["events"], color),
    )
    if not request["kv"]:
        return way
    return way + section(
        "KV entries of that request",
        "Prefill stores one entry a prompt token in each layer; each decode step adds one more.",
        plots.kv_entries(request["kv"], request["prompt_tokens"], request["cached_tokens"], color),
    )


def _method(report: Report) -> str:
    load, warmup = report.workload, report.warmup
    if load["closed_loop"]:
        start = f"within {load['ramp_s']:g} s" if load["ramp_s"] else "at once"
        arrivals = f"closed loop, all agents start {start}"
    else:
        arrivals = f"open loop, {load['rate_per_s']:g} conversations/s (Poisson), timed from the moment each was due"
    facts = {
        "Order": " → ".join(report.order) + "; caches emptied before each",
        "Rounds": f"{load['rounds']}; figures are medians over rounds, ratios are taken within a round",
        "Workload": f"a first prompt of {load['prompt_tokens']:,} tokens: a system prompt of {load['system_tokens']},"
        f" shared by all, a city's hotel notes, and a question of {load['question_tokens']}; answers of"
        f" {load['output_tokens']} tokens; {arrivals}; seed {load['seed']}",
        "Warm-up": f"{warmup['requests']:.0f} short requests in {table.seconds(warmup['duration_s'])}, in no figure",
        "Load test ran on": "{cpu}, {cores} cores, {memory_gib} GiB, {os}".format(**report.machine),
        "Versions": ", ".join(f"{name} {version}" for name, version in report.versions.items()),
        "Started": report.started_at,
    }
    items = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    words = " ".join(f"<span>{escape(word)}</span>" for word in report.command.split(" "))
    return f"<h2>How it was measured</h2><dl>{items}<dt>Command</dt><dd><code>{words}</code></dd></dl>"


def style(policies: list[str]) -> str:
    """The baseline is grey and ours the accent on every page, so that they are known at sight."""
    others = iter(_OTHER_COLORS * len(policies))
    fixed = {"round_robin": _BASELINE_COLOR, "ttft": _OURS_COLOR}
    colors = [fixed[name] if name in fixed else next(others) for name in policies]
    light, dark = (
        " ".join(f"--policy-{number}: {pair[mode]};" for number, pair in enumerate(colors)) for mode in (0, 1)
    )
    return _STYLE.replace("LIGHT", light).replace("DARK", dark)
