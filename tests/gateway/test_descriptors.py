"""In a process of its own: limits can't be raised again."""

import subprocess
import sys

import pytest

CODE = """
import resource, sys
from gateway.descriptors import connections_allowed
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(connections_allowed(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "allowed", "raised"), [(128, 4096, 1920, 4096), (1000, 1000, 372, 1000), (64, 128, 1, 128)]
)
def test_f08_the_soft_limit_is_raised_and_connections_fit(soft: int, hard: int, allowed: int, raised: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(soft), str(hard)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(allowed), str(raised)]
    assert ("open files" in done.stderr) == (allowed < 1000)
