"""What the parts of a check find, a JSON line each: a part that dies half-way leaves what it had."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool
    detail: str = ""


@dataclass(slots=True)
class Findings:
    figures: dict[str, float] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    """Of the device and its software."""


class Recorder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def figure(self, name: str, value: float) -> None:
        self._write({"figure": name, "value": float(f"{value:.4g}")})

    def check(self, name: str, ok: bool, detail: str = "") -> None:
        self._write({"check": name, "ok": bool(ok), "detail": detail})

    def note(self, text: str) -> None:
        self._write({"note": text})

    def fact(self, name: str, value: str) -> None:
        self._write({"fact": name, "value": value})

    def _write(self, line: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def read_findings(path: Path) -> Findings:
    found = Findings()
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # cut off while it was written
        if "figure" in entry:
            found.figures[entry["figure"]] = entry["value"]
        elif "check" in entry:
            found.checks.append(Check(entry["check"], entry["ok"], entry["detail"]))
        elif "fact" in entry:
            found.facts[entry["fact"]] = entry["value"]
        else:
            found.notes.append(entry["note"])
    return found
