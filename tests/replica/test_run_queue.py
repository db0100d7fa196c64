import subprocess
import sys

import pytest

from replica.run_queue import waited_for_core_s
from tests.processes import ROOT

TWO_ON_ONE_CORE = """
import os, threading, time
from replica.run_queue import waited_for_core_s

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
other = os.fork()
until = time.monotonic() + 1
while time.monotonic() < until:
    pass
if not other:
    os._exit(0)
os.waitpid(other, 0)
print(waited_for_core_s(threading.get_native_id()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_who_shares_a_core_waits_for_it() -> None:
    ran = subprocess.run([sys.executable, "-c", TWO_ON_ONE_CORE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert float(ran.stdout) > 0.1


def test_a_thread_that_is_not_there_has_waited_for_nothing() -> None:
    assert waited_for_core_s(2**30) == 0.0
