"""Pilot of a fit by steps: on a sample of the rows it finds where to start, and how fast to go.

A linear model's loss on some thousand rows is minimised in no time, by a quasi-Newton method in
coordinates in which the units and the correlations of features do not matter. From there the steps
need only go the way from the sample's minimum to that of all rows, which is short (Daneshmand,
Lucchi and Hofmann 2016). How long they are to be is tried out: some rates go that way from the
minimum of half of the sample to that of the sample (Bottou 2012 calibrates so).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize

from daskml_dist.backends import get_backend
from daskml_dist.models.base import BatchRows
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers import Optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.training.coordinates import Coordinates

__all__ = ["Pilot"]

Array = NDArray[Any]

#: Steps that gain less than this share of the first loss are the last ones.
_FTOL = 1e-5
#: Inverse of the curvature of a loss, roughly, where a fit ends: the weight of a penalty.
_BENT = 40.0

#: Rates that are tried, as multiples of the optimizer's own.
_RATES = [10.0 ** (k / 2) for k in range(-6, 4)]


class Pilot:
    """The maths of a pilot, of rows in memory.

    Parameters
    ----------
    model : LinearModel
    X : ndarray or CSR matrix of shape (n, n_features)
    y : ndarray of shape (n,)
        As the model encodes them.
    weight : ndarray of shape (n,) or None
    penalty : Penalty
    seed : int
    """

    def __init__(
        self, model: LinearModel, X: Any, y: Array, weight: Array | None, penalty: Penalty,
        seed: int,
    ) -> None:  # fmt: skip
        self.model = model
        self.penalty = penalty
        self.backend = get_backend("cpu")
        order = np.random.default_rng((seed, 1)).permutation(len(y))
        self.X, self.y = X[order], y[order]
        self.weight = None if weight is None else weight[order]
        self.n_rows = len(y)

    # -- the minimum ---------------------------------------------------------------------------

    def minimum(self, start: Array, n_rows: int, most: int) -> tuple[Array, bool]:
        """Minimise the penalised mean loss of the first rows, smooth part alone.

        Returns
        -------
        w : ndarray of float64
        converged : bool
        """
        at = slice(0, n_rows)
        X, weight = self.X[at], None if self.weight is None else self.weight[at]
        if not sparse.issparse(X):
            X = X.astype(np.float64)
        places = Coordinates.of(X, self.model.fit_intercept, _BENT * self.penalty.l2)
        Z = self.backend.to_device(places.rows(X))
        y = self.y[at] if self.model.n_classes > 2 else self.y[at].astype(Z.dtype)
        rows = BatchRows(Z, y, weight)
        total = n_rows if weight is None else float(weight.sum())
        k, shape, l2 = self.model.n_penalised, start.shape, self.penalty.l2

        def evaluate(flat: Array) -> tuple[float, Array]:
            v = flat.reshape(shape)
            gradient = np.zeros(shape)
            with np.errstate(all="ignore"):
                loss = float(self.model.add_gradient(v.astype(Z.dtype), rows, gradient, self.backend))
            gradient /= total
            if l2:
                w = places.coef(v[:k])
                loss += total * l2 / 2 * float(np.vdot(w, w))
                gradient[:k] += l2 * places.transposed(w)
            return loss / total / unit, gradient.ravel() / unit

        unit = 1.0
        first = places.inside(start.astype(np.float64))
        unit = evaluate(first.ravel())[0] or 1.0
        found = minimize(
            evaluate, first.ravel(), method="L-BFGS-B", jac=True,
            options={"maxiter": most, "maxfun": 2 * most, "gtol": 1e-6, "ftol": _FTOL},
        )  # fmt: skip
        return places.outside(found.x.reshape(shape)), found.status == 0

    def value(self, w: Array) -> float:
        """Penalised mean loss of all rows of the sample."""
        rows = BatchRows(self._rows, self.y, self.weight)
        dtype = self.X.dtype
        with np.errstate(all="ignore"):
            loss = self.model.add_gradient(
                w.astype(dtype), rows, np.zeros(w.shape, dtype), self.backend
            )
        total = self.n_rows if self.weight is None else float(self.weight.sum())
        return float(loss) / total + self.penalty.value(w[: self.model.n_penalised])

    @property
    def _rows(self) -> Any:
        return self.backend.to_device(self.X)

    @property
    def least(self) -> float:
        """The smallest factor on a rate that is tried."""
        return _RATES[0]

    # -- the rate ------------------------------------------------------------------------------

    def slots(self, optimizer: Optimizer, w: Array, batch: int) -> dict[str, Array]:
        """State of an optimizer that has seen the sample's batches at `w`."""
        return self._passed(optimizer, w.copy(), optimizer.init(w), 0.0, batch)[1]

    def best_rate(
        self, optimizer: Optimizer, w: Array, slots: dict[str, Array], base: float, batch: int
    ) -> float:
        """The factor on the `base` rate by which a pass comes nearest to the minimum."""
        best = (np.inf, _RATES[0])
        for factor in _RATES:
            own = {name: slot.copy() for name, slot in slots.items()}
            moved, _ = self._passed(optimizer, w.copy(), own, base * factor, batch)
            value = self.value(moved) if np.isfinite(moved).all() else np.inf
            if value < best[0]:
                best = (value, factor)
        return best[1]

    def _passed(
        self, optimizer: Optimizer, w: Array, slots: dict[str, Array], rate: float, batch: int
    ) -> tuple[Array, dict[str, Array]]:  # fmt: skip
        """Parameters and slots after a pass over the sample, at a rate that falls to zero."""
        X, k = self._rows, self.model.n_penalised
        starts = range(0, self.n_rows, batch)
        with np.errstate(all="ignore"):
            for step, start in enumerate(starts):
                at = slice(start, min(start + batch, self.n_rows))
                rows = BatchRows(
                    self.backend.rows(X, at), self.y[at],
                    None if self.weight is None else self.weight[at],
                )  # fmt: skip
                gradient = np.zeros_like(w)
                self.model.add_gradient(w, rows, gradient, self.backend)
                gradient /= len(self.y[at])
                if self.penalty.l2:
                    gradient[:k] += self.penalty.l2 * w[:k]
                lr = rate * (1 - step / len(starts))
                optimizer.update(w, gradient, slots, lr, 1 + step, self._l1(w) if rate else 0.0)
        return w, slots

    def _l1(self, w: Array) -> Any:
        if not self.penalty.l1:
            return 0.0
        strengths = np.zeros((len(w), 1), w.dtype)
        strengths[: self.model.n_penalised] = self.penalty.l1
        return strengths
