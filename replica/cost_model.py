"""How long a step takes, fitted from the replica's own steps, for the gateway's prediction of TTFT."""

import numpy as np
from numpy.typing import NDArray

from replica.protocol.records import CostModel
from replica.step import StepWork

_FORGETTING = 0.995
"""Weight of what is known when a new step is seen: about the last 200 steps count."""

_PRIOR = np.array([1e-3, 1e-4, 1e-6, 1e-4])
_PRIOR_WEIGHT = 0.01
"""Of a step. It decides only where no step has told anything, such as the cost of decodes before the first one."""


class CostModelFit:
    """Least squares over past steps, weighted by age and, since errors count relatively, by 1/seconds².

    Kept as normal equations, which are solved when the model is asked for.
    """

    def __init__(self, max_step_tokens: int) -> None:
        self._max_step_tokens = max_step_tokens
        self._products: NDArray[np.float64] = np.zeros((4, 4))
        self._sums: NDArray[np.float64] = np.zeros(4)

    def observe(self, work: StepWork, seconds: float) -> None:
        if seconds <= 0:
            return
        terms = np.array([1.0, work.tokens, work.attention, work.decoding]) / seconds
        self._products = _FORGETTING * self._products + np.outer(terms, terms)
        self._sums = _FORGETTING * self._sums + terms

    @property
    def model(self) -> CostModel:
        """Coefficients that come out negative (terms that hardly vary) are published as zero."""
        # In units of the prior, so that the matrix is well-conditioned and the ridge weighs all terms alike.
        products = self._products * np.outer(_PRIOR, _PRIOR) + _PRIOR_WEIGHT * np.eye(4)
        solved = np.linalg.solve(products, self._sums * _PRIOR + _PRIOR_WEIGHT) * _PRIOR
        c0, c_lin, c_att, c_dec = (max(0.0, float(value)) for value in solved)
        return CostModel(c0, c_lin, c_att, c_dec, self._max_step_tokens)
