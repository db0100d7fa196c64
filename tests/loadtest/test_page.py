import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

from loadtest import page, plots, table
from loadtest.report import Report


def test_the_page_is_whole_and_needs_nothing_else(report: Report) -> None:
    html = page.render_page(report)
    HTMLParser().feed(html)
    assert not re.search(r'(src|href)="(?!#)|@import|url\((?!#)|<script', html)
    assert "prefers-color-scheme: dark" in html
    assert html.count("<svg") == 5
    assert all(row.meaning in html or row.meaning.replace("'", "&#x27;") in html for row in table.ROWS)
    assert " ".join(f"<span>{word}</span>" for word in report.command.split()) in html
    facts = (report.started_at, "a CPU", "python 3.11.9", "round_robin → ttft", "tiny &lt;model&gt;")
    for fact in facts:
        assert fact in html, fact


def test_plots_are_valid_xml_in_the_pages_colours_with_ids_of_their_own(report: Report) -> None:
    html = page.render_page(report)
    ids: list[str] = []
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        root = ElementTree.fromstring(svg.replace("xlink:href", "href"))
        ids += [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
        assert not re.search(r"#aa00|#0[1-4]0[1-4]0[1-4]", svg)
        assert "var(--" in svg
    assert len(ids) == len(set(ids))


def test_failures_are_on_the_page(report: Report) -> None:
    assert "failed or were never sent" not in page.render_page(report)
    rounds = [figures | {"requests_failed": 3} for figures in report.policies["ttft"]["rounds"]]
    policies = report.policies | {"ttft": report.policies["ttft"] | {"rounds": rounds}}
    assert "6 requests failed or were never sent" in page.render_page(replace(report, policies=policies))


def test_one_policy_alone_and_many_have_a_page_too(report: Report) -> None:
    alone = {"ttft": report.policies["ttft"]}
    ratios = report.ratios | {"baseline": "ttft"}
    html = page.render_page(replace(report, policies=alone, ratios=ratios, samples={"ttft": {"ttft_s": [1.0]}}))
    assert "First token after" in html
    names = ["round_robin", "ttft", *(f"p{number}" for number in range(7))]
    many = {name: report.policies["ttft"] for name in names}
    html = page.render_page(replace(report, policies=many, samples={name: {"ttft_s": [1.0]} for name in names}))
    assert "--policy-8:" in html and "var(--policy-8)" in html


def test_a_plot_of_nothing_is_no_error() -> None:
    assert plots.ttft_ecdf({"ttft": []}).startswith("<svg")


def test_arrivals_are_told(report: Report) -> None:
    assert "all agents start at once" in page.render_page(report)
    open_loop = replace(report, workload=report.workload | {"closed_loop": False, "rate_per_s": 4.0})
    assert "open loop, 4 conversations/s" in page.render_page(open_loop)


def test_phases_are_named_by_what_happens_until_an_event() -> None:
    events: list[dict[str, Any]] = [
        {"event": "received", "at_s": 0.0},
        {"event": "tokenised", "at_s": 1.0},
        {"event": "scheduled", "at_s": 2.0},
        {"event": "prefill", "at_s": 3.0, "cached_tokens": 992, "computed_tokens": 16},
        {"event": "prefill", "at_s": 4.0, "cached_tokens": 0, "computed_tokens": 17},
        {"event": "first_token", "at_s": 5.0},
        {"event": "done", "at_s": 6.0, "output_tokens": 150},
        {"event": "done", "at_s": 7.0},
        {"event": "new_event", "at_s": 8.0},
    ]
    svg = plots.timeline(events, plots.policy_color(0))
    for label in (
        "receive and tokenise",
        "wait in its queue",
        "prefill: 16 tokens, 992 cached",
        "prefill: 17 tokens",
        "decode: 149 steps",
        "relay the end",
        "done → new event",
    ):
        assert f">{label}<" in svg, label


def test_kv_entries_are_labelled_where_prefill_ended() -> None:
    svg = plots.kv_entries([[0.1, 512], [0.2, 1025], [0.3, 1026]], 1025, 0, plots.policy_color(0))
    assert "1,025 after prefill" in svg and "1,026 at the end" in svg and "from the cache" not in svg
