"""The kernels for accelerators: on the card where there is one, else in Triton's interpreter, on small shapes.

Triton reads the variable when it is imported, when a kernel is defined and at times when one runs. All of that happens
here, so that other tests, and the processes that they start, see nothing of it.
"""

import os
import random
from pathlib import Path

import pytest
import torch

HAS_CUDA = torch.cuda.is_available()

if not HAS_CUDA:
    os.environ["TRITON_INTERPRET"] = "1"
try:
    import kernels.device.triton_kernels  # noqa: F401
finally:
    os.environ.pop("TRITON_INTERPRET", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if HAS_CUDA and item.path.is_relative_to(here):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    if not HAS_CUDA:
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if HAS_CUDA else "cpu")


@pytest.fixture
def rng() -> torch.Generator:
    """A freshly seeded generator; a failing test shows the seed."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    return torch.Generator().manual_seed(seed)
