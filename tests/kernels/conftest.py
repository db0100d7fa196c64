import random

import pytest
import torch

from kernels.base import Kernels
from kernels.build import load
from kernels.cpu import CpuKernels

# Beside the native build, the code paths of machines without AVX-512: AVX2 with fma, and plain SSE2.
HAS_AVX2 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
MARCH = ["native", "x86-64-v3", "x86-64"] if HAS_AVX2 else ["native"]


@pytest.fixture(scope="session", params=MARCH)
def cpu(request: pytest.FixtureRequest) -> Kernels:
    return CpuKernels(load(request.param))


@pytest.fixture
def rng() -> torch.Generator:
    """A freshly seeded generator; a failing test shows the seed."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    return torch.Generator().manual_seed(seed)
