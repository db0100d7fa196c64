import sys
from pathlib import Path

import pytest

from deploy.process import ManagedProcess, ProcessFailed, wait_ready

SAYS_READY = "import time; print('ready on http://here', flush=True); time.sleep(60)"


def start(code: str, tmp_path: Path) -> ManagedProcess:
    return ManagedProcess("child", [sys.executable, "-c", code], r"ready on (\S+)", tmp_path / "log")


def test_it_is_ready_when_it_says_so(tmp_path: Path) -> None:
    process = start(SAYS_READY, tmp_path)
    wait_ready([process], timeout_s=20)
    assert process.url == "http://here"
    process.ask_to_stop()
    process.wait_stopped(10)
    assert process.has_ended()


def test_one_that_dies_is_reported_with_its_last_words(tmp_path: Path) -> None:
    process = start("import sys; sys.exit('no such model')", tmp_path)
    with pytest.raises(ProcessFailed, match="child ended with status 1: no such model"):
        wait_ready([process], timeout_s=20)


def test_one_that_never_gets_ready_times_out(tmp_path: Path) -> None:
    process = start("import time; time.sleep(60)", tmp_path)
    with pytest.raises(ProcessFailed, match="not ready after 0 s: child"):
        wait_ready([process], timeout_s=0.2)
    process.wait_stopped(0)


def test_one_that_ignores_us_is_killed(tmp_path: Path) -> None:
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SAYS_READY}"
    process = start(code, tmp_path)
    wait_ready([process], timeout_s=20)
    process.ask_to_stop()
    process.wait_stopped(0.3)
    assert process.has_ended()
