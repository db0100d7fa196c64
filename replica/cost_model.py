"""How long a step takes, fitted from the replica's own steps, for the gateway's prediction of TTFT."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from replica.protocol.records import CostModel


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step computed; the terms of `CostModel`."""

    tokens: int
    attention: float
    """Σ u·(n - u/2) over prefill chunks."""
    decoding: int


class CostModelFit:
    """Recursive least squares with forgetting, each step weighted by 1/seconds² so that errors count relatively.

    The attention term is scaled to the size of the others to keep the matrix well-conditioned. Coefficients that come
    out negative (terms that hardly vary yet) are published as zero.
    """

    FORGETTING = 0.995
    _ATTENTION_SCALE = 1e-3

    def __init__(self, max_step_tokens: int) -> None:
        self._max_step_tokens = max_step_tokens
        self._theta: NDArray[np.float64] = np.array([1e-3, 1e-4, 1e-6, 1e-4])
        self._covariance: NDArray[np.float64] = np.eye(4) * 1e2

    def observe(self, work: StepWork, seconds: float) -> None:
        if seconds <= 0:
            return
        terms = [1.0, work.tokens, work.attention * self._ATTENTION_SCALE, work.decoding]
        x = np.array(terms) / seconds
        gain = self._covariance @ x / (self.FORGETTING + x @ self._covariance @ x)
        self._theta = self._theta + gain * (1.0 - x @ self._theta)
        self._covariance = (self._covariance - np.outer(gain, x @ self._covariance)) / self.FORGETTING
        # Without new information forgetting would let the covariance grow without bound.
        self._covariance *= min(1.0, 1e3 / float(np.trace(self._covariance)))

    @property
    def model(self) -> CostModel:
        c0, c_lin, c_att, c_dec = (max(0.0, float(value)) for value in self._theta)
        return CostModel(c0, c_lin, c_att * self._ATTENTION_SCALE, c_dec, self._max_step_tokens)
