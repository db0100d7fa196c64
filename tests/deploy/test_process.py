import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.process import ManagedProcess, ProcessFailed, wait_ready
from tests.processes import ROOT, eventually

SAYS_READY = "import time; print('ready on http://here', flush=True); time.sleep(60)"


def start(code: str, tmp_path: Path) -> ManagedProcess:
    return ManagedProcess("child", [sys.executable, "-c", code], r"ready on (\S+)", tmp_path / "log")


def test_it_is_ready_when_it_says_so(tmp_path: Path) -> None:
    process = start(SAYS_READY, tmp_path)
    wait_ready([process], timeout_s=120)
    assert process.url == "http://here"
    process.ask_to_stop()
    process.wait_stopped(10)
    assert process.has_ended()


def test_one_that_dies_is_reported_with_its_last_words(tmp_path: Path) -> None:
    process = start("import sys; sys.exit('no such model')", tmp_path)
    with pytest.raises(ProcessFailed, match="child ended with status 1: no such model"):
        wait_ready([process], timeout_s=120)


def test_one_that_never_gets_ready_times_out(tmp_path: Path) -> None:
    process = start("import time; time.sleep(60)", tmp_path)
    with pytest.raises(ProcessFailed, match="not ready after 0 s: child"):
        wait_ready([process], timeout_s=0.2)
    process.wait_stopped(0)


def test_one_that_ignores_us_is_killed(tmp_path: Path) -> None:
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SAYS_READY}"
    process = start(code, tmp_path)
    wait_ready([process], timeout_s=120)
    process.ask_to_stop()
    process.wait_stopped(0.3)
    assert process.has_ended()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_it_does_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent_code = (
        "import os, signal, sys\n"
        "from pathlib import Path\nLOG = Path(sys.argv[1])\n"
        "from deploy.process import ManagedProcess, wait_ready\n"
        f"child = ManagedProcess('child', [sys.executable, '-c', {SAYS_READY!r}], r'ready on (.*)', LOG)\n"
        "wait_ready([child], 20)\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", parent_code, str(tmp_path / "log")]
    parent = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert parent.returncode == -signal.SIGKILL
    eventually(lambda: not _is_running(int(parent.stdout)))


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
