import random

import pytest

from replica.cost_model import CostModelFit
from replica.step import StepWork


def test_the_fit_finds_the_truth_through_noise(seed: int) -> None:
    rng = random.Random(seed)
    fit = CostModelFit(max_step_tokens=256)

    def seconds(work: StepWork) -> float:
        return 0.009 + 7e-4 * work.tokens + 1e-6 * work.attention + 1.7e-3 * work.decoding

    for _ in range(2000):
        tokens = rng.choice([0, 16, 100, 256])
        context = rng.randrange(tokens, 4000) if tokens else 0
        work = StepWork(tokens, tokens * (context - tokens / 2) if tokens else 0.0, rng.randrange(0, 20))
        fit.observe(work, seconds(work) * rng.uniform(0.9, 1.1))
    for work in (StepWork(256, 256 * 1000, 0), StepWork(0, 0, 10), StepWork(100, 100 * 3000, 5)):
        model = fit.model
        predicted = model.c0 + model.c_lin * work.tokens + model.c_att * work.attention + model.c_dec * work.decoding
        assert predicted == pytest.approx(seconds(work), rel=0.1)


def test_it_follows_a_machine_that_slows_down() -> None:
    fit = CostModelFit(max_step_tokens=256)
    for scale in (1.0, 3.0):
        for n in range(2000):
            work = StepWork(tokens=16 + n % 200, attention=0.0, decoding=0)
            fit.observe(work, scale * (0.01 + 1e-3 * work.tokens))
    assert fit.model.c_lin == pytest.approx(3e-3, rel=0.1)


def test_coefficients_are_never_negative() -> None:
    fit = CostModelFit(max_step_tokens=256)
    for n in range(200):
        fit.observe(StepWork(100 + n, 0.0, 5), 0.3 - n * 1e-3)
    model = fit.model
    assert min(model.c0, model.c_lin, model.c_att, model.c_dec) >= 0
