"""Runs the parts of the check, each in a process of its own, within the time there is; and writes what they found.

A kernel that goes astray leaves its process without a device, and one that hangs can only be killed: neither may cost
the findings of other parts. No torch here.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.gpu.figures import TARGETS, derived
from loadtest.gpu.limits import GRACE_S, LIMITS_S, WHOLE_S
from loadtest.gpu.record import Check, Findings, Recorder, read_findings
from loadtest.machine import machine, versions

_WORTH_BEGINNING_S = 10.0
_STOP_LIMIT_S = 15.0


@dataclass(frozen=True, slots=True)
class GpuCheckOptions:
    device: str
    folder: Path
    out: Path
    small: bool = False
    parts: tuple[str, ...] = tuple(LIMITS_S)
    vllm_python: Path | None = None
    whole_s: float = WHOLE_S
    apart: bool = True
    """Each part in a process of its own."""


@dataclass(slots=True)
class GpuReport:
    options: GpuCheckOptions
    findings: Findings = field(default_factory=Findings)

    @property
    def on_card(self) -> bool:
        """Some part has seen one."""
        return self.options.device.startswith("cuda") and "device" in self.findings.facts

    @property
    def ok(self) -> bool:
        return bool(self.findings.checks) and all(check.ok for check in self.findings.checks)

    def add(self, found: Findings) -> None:
        self.findings.figures |= found.figures
        self.findings.facts |= found.facts
        self.findings.checks += found.checks
        self.findings.notes += found.notes

    def figures(self) -> dict[str, float]:
        return self.findings.figures | derived(self.findings.figures)

    def write(self) -> None:
        figures = self.figures()
        body = {
            "bench": "gpu",
            "machine": machine() | self.findings.facts,
            "versions": versions(),
            "on_card": self.on_card,
            "small": self.options.small,
            "figures": figures,
            "targets": {
                name: {"wanted": str(target), "met": target.met(figures[name])}
                for name, target in TARGETS.items()
                if name in figures
            }
            if self.on_card and not self.options.small
            else {},
            "checks": [{"name": one.name, "ok": one.ok, "detail": one.detail} for one in self.findings.checks],
            "notes": self.findings.notes,
        }
        self.options.out.parent.mkdir(parents=True, exist_ok=True)
        self.options.out.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n")


def check_gpu(options: GpuCheckOptions) -> GpuReport:
    """The file is written anew after each part, so that what is known is never lost."""
    report = GpuReport(options)
    for findings in _findings(options):
        report.add(findings)
        report.write()
    return report


def _findings(options: GpuCheckOptions) -> Iterator[Findings]:
    end = time.monotonic() + options.whole_s
    with tempfile.TemporaryDirectory(prefix="ryokan-gpu-") as folder:
        for name in options.parts:
            left = end - time.monotonic()
            if left < _WORTH_BEGINNING_S:
                yield Findings(notes=[f"{name}: left out, the time for all parts was up"])
                continue
            print(f"{name} ...", file=sys.stderr, flush=True)
            path = Path(folder) / f"{name}.jsonl"
            limit = min(LIMITS_S[name], left)
            failed = None
            if options.apart:
                failed = _run_apart(options, name, path, limit)
            else:
                run_one(options, name, path, limit)
            findings = read_findings(path)
            if failed is not None:
                findings.checks.append(Check(f"{name} ran to its end", False, failed))
            yield findings


def _run_apart(options: GpuCheckOptions, name: str, path: Path, limit_s: float) -> str | None:
    """What befell the process, if it didn't end well."""
    command = [sys.executable, "-m", "loadtest.gpu_check", "--device", options.device, "--model", str(options.folder)]
    command += ["--part", name, "--record", str(path), "--limit-s", f"{limit_s:.0f}"]
    command += ["--small"] if options.small else []
    command += ["--vllm-python", str(options.vllm_python)] if options.vllm_python else []
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        status = process.wait(limit_s + GRACE_S)
    except subprocess.TimeoutExpired:
        return f"stopped after {limit_s + GRACE_S:.0f} s"
    finally:
        _stop(process)
    return f"its process ended with {status}" if status else None


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """By a signal that lets it stop what it has started itself."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_one(options: GpuCheckOptions, name: str, path: Path, limit_s: float) -> None:
    """In this process."""
    # Loads torch.
    import torch

    from loadtest.gpu.bench import Bench
    from loadtest.gpu.parts import PARTS, run_part
    from loadtest.gpu.peaks import facts

    device, recorder = torch.device(options.device), Recorder(path)
    if device.type == "cpu" or torch.cuda.is_available():
        for name_of, fact in facts(device).items():
            recorder.fact(name_of, fact)
    bench = Bench(
        device=device,
        small=options.small,
        folder=options.folder,
        vllm_python=options.vllm_python,
        record=recorder,
        deadline_s=time.monotonic() + limit_s,
    )
    run_part(next(part for part in PARTS if part.name == name), bench)
