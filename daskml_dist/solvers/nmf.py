"""Non-negative factorisation by least squares: components from sums, weights from each row alone.

The weights of a row are the best ones for the components, so nothing is remembered of any row, and
the rows' error is a function of the components. These take a few sweeps of coordinate descent
between two sums, and then go some way on in their last direction.

References
----------
N. Gillis and F. Glineur, "Accelerated multiplicative updates and hierarchical ALS algorithms for
nonnegative matrix factorization", Neural Computation 24(4), 2012. A. M. S. Ang and N. Gillis,
"Accelerating nonnegative matrix factorization algorithms using extrapolation", Neural Computation
31(2), 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from daskml_dist.backends import Backend
from daskml_dist.backends.namespace import cast, namespace, total, zeros
from daskml_dist.backends.nonnegative import descend, left_squares, nonnegative
from daskml_dist.models.base import BatchRows
from daskml_dist.solvers.base import Array, Solution, Statistic, Sums
from daskml_dist.solvers.nonnegative import NonnegativeSolver, weighted
from daskml_dist.solvers.rows import is_sparse, row_tiles, sum_of_squares, to_rows

__all__ = ["LeastSquaresNMF", "LeastSquaresWeights", "best_weights"]

#: Bytes of a piece of a dense block that both products read.
_PIECE = 1 << 20
#: Sweeps over the weights of a row at most; the change that ends them, of what is left of the
#: components' slope, at most and at least.
_SWEEPS, _SETTLED, _MOST, _LEAST = 200, 1e-2, 1e-3, 1e-7
#: Sweeps over the components between two sums.
_INNER = 3
#: Of the way on: first, its growth, that of its bound, and what it shrinks by (Ang and Gillis).
_FIRST, _GROWTH, _BOUND_GROWTH, _SHRINK = 0.5, 1.05, 1.01, 1.5


def best_weights(gram: Any, products: Any, l1: float, l2: float, sweeps: int, tol: float) -> Any:
    """The weights of some rows for which the squared error, and penalty, is smallest.

    Parameters
    ----------
    gram : array of shape (k, k)
        Products of the components.
    products : array of shape (n, k)
        Of the rows with the components.
    l1, l2 : float
        Penalties on a row's weights, and on half their squares.
    """
    if l2:
        gram = gram + zeros(tuple(gram.shape), gram.dtype, like=gram)
        for t in range(gram.shape[0]):
            gram[t, t] += l2
    return nonnegative(gram, products - l1 if l1 else products, sweeps, tol)


@dataclass(frozen=True, eq=False)
class LeastSquaresWeights(Statistic):
    """``X.T @ W``, ``W.T @ W`` and the error, for the best weights W of the rows.

    The error is half the squared distance of the rows, less half their squares, plus penalties.

    Parameters
    ----------
    across : ndarray of shape (n_features, k)
        The components.
    l1, l2 : float
        As of :func:`best_weights`.
    sweeps : int
    tol : float
    only_error : bool
        Leave the sums out, and let the error be half the squared distance alone.
    """

    across: Array
    l1: float = 0.0
    l2: float = 0.0
    sweeps: int = _SWEEPS
    tol: float = _MOST
    only_error: bool = False
    in_parts: ClassVar[bool] = True

    def shape(self, model: Any) -> tuple[int, ...]:
        d, k = (0, 0) if self.only_error else self.across.shape
        return d + k + 1, max(k, 1)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        across = to_rows(self.across, rows.X, backend)
        gram = across.T @ across
        sparse, error = is_sparse(rows.X), 0.0
        for at in row_tiles(rows.X, backend, cached=_PIECE):
            part = rows.part(at, backend)
            products = backend.dot(part.X, across)
            products = namespace(across).reshape(products, (part.X.shape[0], across.shape[1]))
            W = best_weights(gram, products, self.l1, self.l2, self.sweeps, self.tol)
            own = weighted(W, part.weight)
            if self.only_error and not sparse:
                squares = left_squares(part.X, W, across, backend)
                error = error + total(weighted(squares[:, None], part.weight)) / 2
                continue
            squares = cast(own.T @ W, out.dtype)
            error = error + self._error(gram, products, W, own, squares, out.dtype)
            if self.only_error:
                error = error + sum_of_squares(part.X, part.weight, backend) / 2
            else:
                backend.add_tdot(part.X, own, out[: across.shape[0], ...])
                out[across.shape[0] : -1, ...] += squares
        out[-1, 0] += error
        return float("nan")

    def _error(self, gram: Any, products: Any, W: Any, own: Any, squares: Any, dtype: Any) -> Any:
        """Error of some rows, less half their squares."""
        inner = total(cast(gram, dtype) * squares) / 2 - total(cast(own * products, dtype))
        if self.only_error:
            return inner
        penalty = self.l1 * total(cast(own, dtype)) + self.l2 / 2 * total(cast(own * W, dtype))
        return inner + penalty


@dataclass(frozen=True)
class LeastSquaresNMF(NonnegativeSolver):
    """Non-negative components of all rows, for the smallest squared error.

    Its parameters are those of its base; `tol` is of the slope of the components, by which it ends,
    of the first.
    """

    name = "cd"
    _more = 1  # the last error

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Find them.

        Returns
        -------
        Solution
            With the components, of shape (n_features, k), and "error": half the squared distance
            of all rows.
        """
        at = _Point(sums.kept) if sums.kept is not None else self._begun(model, sums, start)
        while at.n_iter < self.max_iter and not at.done and not sums.should_stop:
            self._step(at, sums)
            if at.n_iter < self.max_iter and not at.done:
                sums.keep(at.H, at.state, extra={"error": np.nan})
        error = float(sums(self._asked(at.H, at.settled, only_error=True))[-1, 0])
        message = "the components still change"
        return Solution(at.H, at.n_iter, at.done or not self.tol, message, {"error": error})

    def _begun(self, model: Any, sums: Sums, start: Array | None) -> _Point:
        entries, _ = self.begin.totals(sums)
        mean = entries / (sums.n_rows * model.n_features)
        H, _ = self.begin(model, sums, start, mean)
        way = np.array([_FIRST, 1.0, _FIRST])
        return _Point(
            {"H": H, "ahead": H, "way": way, "seen": np.array([np.inf, np.nan, _MOST, 0])}
        )

    def _asked(self, across: Array, tol: float, **how: bool) -> LeastSquaresWeights:
        return LeastSquaresWeights(across, self.l1_rows, self.l2_rows, tol=tol, **how)

    def _step(self, at: _Point, sums: Sums) -> None:
        """Improve the components by one sum, or go back where the last one went too far."""
        ahead, n = at.ahead, sums.n_rows
        d, k = ahead.shape
        found = sums(self._asked(ahead, at.settled))
        at.n_iter += 1
        error = float(found[-1, 0]) + n * float(
            self.l1 * ahead.sum() + self.l2 / 2 * (ahead * ahead).sum()
        )
        if error > at.error:
            at.go_back()
            return
        at.error = error
        gram = found[d:-1] + n * self.l2 * np.eye(k)
        slope = ahead @ gram - (found[:d] - n * self.l1)
        size = float(np.abs(np.where(ahead > 0, slope, np.minimum(slope, 0.0))).sum())
        if np.isnan(at.first_slope):
            at.first_slope = size
        at.settled = min(_MOST, max(_LEAST, _SETTLED * size / (at.first_slope or 1.0)))
        if size <= self.tol * at.first_slope:
            at.H, at.done = ahead, True
            return
        new = ahead.copy()
        descend(gram, slope, new, _INNER, 0.0)
        at.go_on(new)


class _Point:
    """Components as far as they are found, and where they are looked at next.

    Parameters
    ----------
    state : dict from str to ndarray
        As :meth:`state` returns.
    """

    def __init__(self, state: dict[str, Array]) -> None:
        #: The components, and the point ahead of them, of shape (n_features, k).
        self.H, self.ahead = state["H"], state["ahead"]
        self.way, self.bound, self.before = state["way"].tolist()
        self.error, self.first_slope, self.settled, n_iter = state["seen"].tolist()
        self.n_iter = int(n_iter)
        self.done = False

    def go_on(self, new: Array) -> None:
        """Take other components, and look some way ahead of them."""
        self.ahead = np.maximum(new + self.way * (new - self.H), 0.0)
        self.H, self.before = new, self.way
        self.bound = min(1.0, _BOUND_GROWTH * self.bound)
        self.way = min(self.bound, _GROWTH * self.way)

    def go_back(self) -> None:
        """Look where the components are, and go shorter ways from there."""
        self.ahead, self.error = self.H, np.inf
        self.bound, self.way = self.before, self.way / _SHRINK

    def state(self) -> dict[str, Array]:
        """All that is needed to go on."""
        return {
            "H": self.H,
            "ahead": self.ahead,
            "way": np.array([self.way, self.bound, self.before]),
            "seen": np.array([self.error, self.first_slope, self.settled, self.n_iter]),
        }
