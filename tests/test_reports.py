"""A failure is reported, whatever is collected as garbage in the meantime."""

import subprocess
import sys
from pathlib import Path

from tests.processes import ROOT

CONFTEST = "from tests.conftest import pytest_runtest_makereport, pytest_sessionfinish"
FAILS = """
import ast, gc

class Again:
    left = 3000

    def __init__(self):
        self.me = self

    def __del__(self):
        ast.parse("1")
        Again.left -= 1
        if Again.left:
            Again()

def test_fails():
    Again()
    gc.set_threshold(100)
    assert False
"""


def test_a_failure_with_garbage_that_parses_source_is_reported(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(FAILS)
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), str(tmp_path / "test_it.py")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "1 failed" in run.stdout
