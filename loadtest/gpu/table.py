"""The figures for people: beside each what was wanted of it."""

from rich.console import Console
from rich.table import Table

from loadtest.gpu.figures import TARGETS, unit_of
from loadtest.gpu.run import GpuReport

NOT_ON_A_CARD = "NOTHING WAS MEASURED ON A CARD: the figures say no more than that the check itself runs."


def print_report(report: GpuReport, console: Console) -> None:
    findings = report.findings
    judged = report.on_card and not report.options.small
    table = Table(title=f"GPU check: {findings.facts.get('device', report.options.device)}")
    for heading in ("figure", "value", "wanted", ""):
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    for name, value in report.figures().items():
        target = TARGETS.get(name) if judged else None
        verdict = "" if target is None else ("met" if target.met(value) else "MISSED")
        table.add_row(name, f"{value:,.4g} {unit_of(name)}".strip(), str(target or ""), verdict)
    console.print(table)
    for name, target in TARGETS.items():
        if judged and name not in report.figures():
            console.print(f"{name}: not measured, {target} was wanted", highlight=False)
    failed = [check for check in findings.checks if not check.ok]
    for check in failed:
        console.print(f"FAILED {check.name}: {check.detail}", highlight=False, markup=False)
    for note in findings.notes:
        console.print(note, highlight=False, markup=False)
    console.print(f"{len(findings.checks) - len(failed)} of {len(findings.checks)} checks passed", highlight=False)
    if not report.on_card:
        console.print(NOT_ON_A_CARD, highlight=False)
    elif report.options.small:
        console.print("Small sizes: no figure is of worth.", highlight=False)
