"""Gradients of a stream's rows, on a worker."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import get_backend
from daskml_dist.backends.namespace import scalar
from daskml_dist.models.base import BatchRows
from daskml_dist.streaming.cluster.calls import Share
from daskml_dist.training.spec import FitSpec

__all__ = ["Gradients"]


class Gradients:
    """Gradients of one model.

    Parameters
    ----------
    fit : FitSpec
    """

    def __init__(self, fit: FitSpec) -> None:
        self._model: Any = fit.steps.model
        self._few = fit.steps.coordinates
        self._seed = fit.steps.seed
        self._backend = get_backend("cpu")

    def rows(self, number: int, share: Share) -> BatchRows:
        """Rows of a lane's share of a step, as the model reads them."""
        lane, X, y, weight = share
        device = self._backend.to_device
        X = self._backend.rows(device(X), slice(0, X.shape[0]))
        y, weight = (None if a is None else device(a) for a in (y, weight))
        return BatchRows(X, y, weight, (self._seed, lane, number, 0))

    def touched(self, rows: BatchRows) -> NDArray[np.int64] | None:
        """Rows of the parameters that some rows touch; None: all."""
        if not self._few:
            return None
        if rows.X.shape[0] == 0:
            return np.zeros(0, np.int64)
        index: NDArray[np.int64] = self._model.touched([rows], self._backend)
        return index

    def of(self, w: Any, rows: BatchRows) -> tuple[NDArray[Any], float]:
        """Gradient SUM of some rows, in a new array, and the sum of their losses."""
        out = np.zeros(w.shape, w.dtype)
        if rows.X.shape[0] == 0:
            return out, 0.0
        return out, float(scalar(self._model.add_gradient(w, rows, out, self._backend)))
