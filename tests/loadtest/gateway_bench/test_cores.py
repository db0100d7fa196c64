import os
import subprocess
import sys
import time

from loadtest.gateway_bench.cores import cpu_s, family, on_core, resident_mib, split_cores

BUSY = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\nprint(flush=True)\ninput()"


def test_a_child_runs_where_it_was_started_and_its_time_is_counted() -> None:
    before = os.sched_getaffinity(0)
    core, other = split_cores()
    assert {core, other} <= before
    with on_core(core):
        child = subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert os.sched_getaffinity(0) == before
        assert os.sched_getaffinity(child.pid) == {core}
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in family(os.getpid()) and family(child.pid) == [child.pid]
        assert 0.2 <= cpu_s([child.pid]) < time.process_time() + 60
        assert 1 < resident_mib([child.pid]) < 1000
    finally:
        child.communicate(b"\n")
    assert cpu_s([child.pid]) == resident_mib([child.pid]) == 0
