import os
import sys
import time
from pathlib import Path

import pytest

from loadtest.peers.errors import PeersError
from loadtest.peers.processes import Child, cpu_seconds, parse_stat
from tests.processes import eventually

TICKS = os.sysconf("SC_CLK_TCK")


def stat(pid: int, parent: int, ticks: tuple[int, int, int, int], name: str = "x") -> str:
    return f"{pid} ({name}) S {parent} 1 1 0 -1 0 0 0 0 0 {' '.join(map(str, ticks))} 20 0 1 0 99 0"


def test_a_command_may_hold_spaces_and_brackets() -> None:
    assert parse_stat(stat(7, 3, (1, 2, 3, 4), "smg :: (a) b")) == (3, 10 / TICKS)


def test_descendants_count_and_others_do_not(tmp_path: Path) -> None:
    for pid, parent, used in ((10, 1, 5), (11, 10, 7), (12, 11, 11), (20, 1, 1000)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(stat(pid, parent, (used, 0, 0, 0)))
    assert cpu_seconds(10, tmp_path) == pytest.approx(23 / TICKS)
    assert cpu_seconds(99, tmp_path) == 0


def test_a_childs_own_work_and_its_childrens_are_seen(tmp_path: Path) -> None:
    burn = "while True: pass"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}]).wait()"
    child = Child("burner", [sys.executable, "-c", code], tmp_path / "log")
    try:
        eventually(lambda: child.cpu_s() > 0.2, timeout_s=30)
        child.check()
    finally:
        child.stop()
    before = child.cpu_s()
    time.sleep(0.1)
    assert child.cpu_s() == before == 0


def test_a_child_that_ends_says_its_last_words(tmp_path: Path) -> None:
    child = Child("short", [sys.executable, "-c", "print('ready on http://x'); raise SystemExit(3)"], tmp_path / "log")
    eventually(lambda: child.find(r"ready on (\S+)") == "http://x", timeout_s=30)

    def ended() -> bool:
        try:
            child.check()
        except PeersError as error:
            assert str(error) == "short ended with status 3: ready on http://x"
            return True
        return False

    eventually(ended)
    child.stop()
