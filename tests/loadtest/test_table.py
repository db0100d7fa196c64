from dataclasses import replace
from io import StringIO

from rich.console import Console

from loadtest import table
from loadtest.report import Report


def printed(report: Report, width: int) -> str:
    out = StringIO()
    table.print_table(report, Console(file=out, width=width))
    return out.getvalue()


def test_units_are_readable() -> None:
    assert [table.seconds(value) for value in (0.0123, 0.5, 1.234, 75.0)] == ["12.3 ms", "500 ms", "1.23 s", "75.00 s"]
    assert table.count(12345.0) == "12,345"
    assert (table.percent(0.875), table.times(0.333), table.per_second(12.34)) == ("87.5 %", "× 0.33", "12.3 /s")


def test_a_wide_terminal_gets_columns_and_ratios(report: Report) -> None:
    head, *rows = [line for line in printed(report, 120).splitlines() if line.strip()]
    assert head.split() == ["round_robin", "ttft", "ttft", "/", "round_robin"]
    assert len(rows) >= len(table.ROWS)
    assert next(row for row in rows if "TTFT, median" in row).split()[2:] == ["385", "ms", "385", "ms", "×", "1.00"]


def test_a_narrow_terminal_gets_a_list_with_every_figure(report: Report) -> None:
    text = printed(report, 60)
    assert "TTFT, median: round_robin 385 ms, ttft 385 ms, × 1.00" in " ".join(text.split())
    assert all(row.label.strip() in " ".join(text.split()) for row in table.ROWS)


def test_a_figure_that_wasnt_measured_is_a_dash(report: Report) -> None:
    policies = {name: figures | {"itl_mean_s": None} for name, figures in report.policies.items()}
    lines = table.lines(replace(report, policies=policies))
    assert next(line for line in lines if line.row.figure == "itl_mean_s").cells == ["–", "–"]


def test_one_policy_alone_is_compared_with_nothing(report: Report) -> None:
    alone = replace(report, ratios=report.ratios | {"baseline": report.ratios["policy"]})
    assert table.ratio_heading(alone) == ""
    assert {line.ratio for line in table.lines(alone)} == {""}
