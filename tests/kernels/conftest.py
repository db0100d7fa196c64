import random

import pytest
import torch

from kernels.base import Kernels
from kernels.build import load
from kernels.cpu import CpuKernels

# Beside the native build, the code paths of machines without AVX-512: AVX2 with fma, and plain SSE2.
CAPABILITY = torch.backends.cpu.get_cpu_capability()
HAS_AVX2 = CAPABILITY in ("AVX2", "AVX512")
MARCH = {"AVX512": ["native", "x86-64-v3", "x86-64"], "AVX2": ["native", "x86-64"]}.get(CAPABILITY, ["native"])


@pytest.fixture(scope="session", params=MARCH)
def cpu(request: pytest.FixtureRequest) -> Kernels:
    return CpuKernels(load(request.param))


@pytest.fixture
def rng() -> torch.Generator:
    """A freshly seeded generator; a failing test shows the seed."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    return torch.Generator().manual_seed(seed)
