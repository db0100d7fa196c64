"""Real processes, without torch in them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from replica.device.parallel.group import RUN, START, RankDied, RankGroup
from tests.processes import ROOT, eventually
from tests.replica.device.parallel.plain_rank import Errand, Notes

ENTRY = "tests.replica.device.parallel.plain_rank"


@contextmanager
def group(folder: Path, size: int = 3, fails: bool = False) -> Iterator[RankGroup]:
    ranks = RankGroup(size, ENTRY)
    try:
        ranks.start()
        ranks.send(START, Notes(folder, fails))
        yield ranks
    finally:
        ranks.close()


def errand(word: str) -> Errand:
    return Errand(word, np.array([1, 2], dtype=np.int32))


def is_running(pid: int) -> bool:
    """Ended but not waited for counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_followers_do_what_they_are_told_and_end(tmp_path: Path) -> None:
    with group(tmp_path) as ranks:
        ranks.wait_ready(30)
        # Neither a Ctrl-C nor a supervisor's SIGTERM ends them before rank 0 says so.
        for pid in ranks.pids:
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)
        ranks.send(RUN, errand("hello"))
        eventually(lambda: {path.name for path in tmp_path.iterdir()} == {"1-hello-[1, 2]", "2-hello-[1, 2]"})
        pids = ranks.pids
        assert all(is_running(pid) for pid in pids)
    assert not any(is_running(pid) for pid in pids)
    assert ranks.failure is None


def test_one_that_is_killed_takes_the_group_with_it(tmp_path: Path) -> None:
    heard: list[str] = []
    with group(tmp_path) as ranks:
        ranks.wait_ready(30)
        ranks.listen(heard.append)
        ranks.send(RUN, errand("hang"))
        os.kill(ranks.pids[1], signal.SIGKILL)
        eventually(lambda: heard)
        assert heard == ["rank 2 of 3 was killed by signal 9"]
        assert not any(is_running(pid) for pid in ranks.pids)
        with pytest.raises(RankDied, match="rank 2 of 3"):
            ranks.send(RUN, errand("hello"))
        late: list[str] = []
        ranks.listen(late.append)
        assert late == heard


def test_one_that_cannot_start_says_why(tmp_path: Path) -> None:
    said = "rank 1 of 2: BadNotes: the folder is damp"
    with group(tmp_path, size=2, fails=True) as ranks, pytest.raises(RankDied, match=said):
        ranks.wait_ready(30)


OWNER = """
import os, sys, time
from pathlib import Path
from replica.device.parallel.group import RUN, START, RankGroup
from tests.replica.device.parallel.plain_rank import Notes
from tests.replica.device.parallel.test_group import errand
ranks = RankGroup(3, "tests.replica.device.parallel.plain_rank")
ranks.start()
ranks.send(START, Notes(Path(sys.argv[1])))
ranks.wait_ready(30)
ranks.send(RUN, errand("hang"))
print(*ranks.pids, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere one that hangs outlives rank 0")
def test_no_orphans_where_rank_0_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 2 and all(is_running(pid) for pid in pids)
        owner.kill()
        owner.wait()
    eventually(lambda: not any(is_running(pid) for pid in pids))
