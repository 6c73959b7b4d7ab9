r"""Rows reduced to as many as there are features, with the same least-squares problem.

:math:`|X w - y|^2 = |R w - z|^2 + \mathrm{const}` for a square `R`, which is the Cholesky factor
of the Gram matrix. Its condition is the square of that of `X`, so where too few digits are left
the rows are looked at again: float32 rows in float64 and about their means, and then, seldom, any
rows through the inverse of the factor found. That is shifted CholeskyQR (Fukaya et al., "Shifted
Cholesky QR for computing the QR factorization of ill-conditioned matrices", SIAM J. Sci. Comput.
42, 2020): as exact as a QR of the rows, yet each look is a plain sum over rows. The common case
needs one look, at the speed of a symmetric product; TSQR (Demmel et al., 2012) would cost several
times that in every case, and a reduction that is no sum.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.linalg import lapack

from daskml_dist.errors import DivergedError
from daskml_dist.solvers.base import Array, Sums
from daskml_dist.solvers.moments import Moments

__all__ = ["MAX_LOOKS", "Reduced", "reduce_rows"]

#: Looks at most; each sees conditions that are about 1e7 times those of the one before.
MAX_LOOKS = 4
#: The least eigenvalue over the error of the products, so that coefficients are right to about
#: 1e-5 in float32 (measured over conditions and offsets); float64 has digits to spare for half
#: of them.
_DIGITS = 1e5
_EPS = float(np.finfo(np.float64).eps)
#: Root mean squares from which on squares keep their digits, in float64 and float32.
_SMALL, _SMALL_SINGLE = 1e-146, 1e-15
#: The least singular value that a look tells from zero for sure, in roots of its error.
_DEAR = 4.0


@dataclass(frozen=True)
class Reduced:
    """A least-squares problem of a few rows, centred where the model has an intercept.

    Parameters
    ----------
    R : ndarray of shape (n, n_features)
    z : ndarray of shape (n, n_targets)
    y_squares : ndarray of shape (n_targets,)
        Sum of the squared (centred) targets.
    x_mean : ndarray of shape (n_features,)
    y_mean : ndarray of shape (n_targets,)
        Zero without an intercept.
    n_looks : int
        Passes over the rows.
    """

    R: Array
    z: Array
    y_squares: Array
    x_mean: Array
    y_mean: Array
    n_looks: int


def reduce_rows(
    model: Any,
    sums: Sums,
    *,
    eps: float,
    l2: float,
    cut: float,
    dear: bool = False,
) -> Reduced:
    """Reduce all rows.

    Parameters
    ----------
    model : LinearModel
    sums : Sums
    eps : float
        Relative precision of the first look.
    l2 : float
        Squared-norm penalty that the problem will get: directions that are small beside it need
        few digits.
    cut : float
        Singular values below this share of the largest will be taken for zero, so they need none.
    dear : bool
        Whether another look costs much more than the first: then a direction that is as small as
        a look can tell counts as zero too (dependent columns, of one-hot codes for instance).

    Raises
    ------
    DivergedError
        The squares overflow.
    """
    y_shift = np.zeros(model.width)  # the model's own shift leaves the targets near zero
    try:
        seen = _plain_look(model, sums, Moments(y_shift), eps)
    except DivergedError:
        if eps <= _EPS:
            raise
        # Squares that float32 cannot hold.
        seen, eps = _plain_look(model, sums, Moments(y_shift, np.zeros(model.n_features))), _EPS
    floor = 0.0
    for n_looks in range(1, MAX_LOOKS + 1):
        penalised = seen.gram + l2 * seen.transform.T @ seen.transform
        certain = max(_DIGITS * eps, np.sqrt(eps))
        if _least_value(penalised) >= certain:
            floor = 0.0
            break
        floor = certain if cut else 0.0
        values, vectors = linalg.eigh(penalised)
        # No eigenvalue is wrong by more than this: the errors of all entries, in one direction.
        roots = np.sqrt(np.maximum(values, 0.0) + len(values) * eps)
        rows = roots[:, None] * (vectors.T @ seen.inverse)
        known = values > floor
        least = _DEAR * np.sqrt(len(values) * eps) if dear and cut else 0.0
        if n_looks == MAX_LOOKS or sums.should_stop or _cut_away(rows, known, max(cut, least)):
            break
        if eps > _EPS:
            seen, eps = _plain_look(model, sums, Moments(seen.y_mean, seen.x_mean)), _EPS
        else:
            seen = _next_look(model, sums, seen, vectors, roots)
    R, z = seen.factor(floor)
    return Reduced(R, z, seen.y_squares, seen.x_mean, seen.y_mean, n_looks)


def _cut_away(rows: Array, known: NDArray[np.bool_], cut: float) -> bool:
    """Whether all directions that are not known count as zero for sure."""
    if not cut or not known.any():
        return False
    return bool(2 * linalg.norm(rows[~known], 2) <= cut * linalg.norm(rows[known], 2))


@dataclass(frozen=True)
class _Look:
    """Sums of the rows ``U = (X - x_mean) @ transform``, and what leads back: inverse.

    Features that are zero everywhere are ones in `gram`, by `filler`, and zeros in the rest.
    """

    gram: Array
    xy: Array
    y_squares: Array
    transform: Array
    inverse: Array
    filler: Array
    x_mean: Array
    y_mean: Array

    def factor(self, floor: float) -> tuple[Array, Array]:
        """`R` and `z`, of the directions whose eigenvalues are above `floor`."""
        if not floor:
            with suppress(linalg.LinAlgError):
                root = linalg.cholesky(self.gram)
                return root @ self.inverse, linalg.solve_triangular(root, self.xy, trans="T")
        values, vectors = linalg.eigh(self.gram)
        kept = values > floor
        roots, vectors = np.sqrt(values[kept])[:, None], vectors[:, kept]
        return roots * (vectors.T @ self.inverse), vectors.T @ self.xy / roots


def _plain_look(model: Any, sums: Sums, statistic: Moments, eps: float = _EPS) -> _Look:
    """Look at the rows as they are; each feature is scaled by its norm afterwards."""
    total = _sums(sums, statistic)
    norms = np.sqrt(np.diag(total)[: model.n_features])
    _check_norms(norms, total, model.n_features, _SMALL if eps <= _EPS else _SMALL_SINGLE)
    scales = np.divide(1.0, norms, out=np.zeros(len(norms)), where=norms > 0)
    gram, xy, y_squares, x_mean, y_mean = _centred(model, total)
    filler = np.diag(np.where(norms > 0, 0.0, 1.0))
    return _Look(
        gram * scales[:, None] * scales + filler,
        xy * scales[:, None],
        y_squares,
        np.diag(scales),
        np.diag(norms),
        filler,
        x_mean if statistic.x_shift is None else x_mean + statistic.x_shift,
        y_mean + statistic.y_shift,
    )


def _next_look(model: Any, sums: Sums, seen: _Look, vectors: Array, roots: Array) -> _Look:
    """Look through the inverse of the factor found: such rows are nearly orthonormal."""
    transform = seen.transform @ vectors / roots
    inverse = roots[:, None] * (vectors.T @ seen.inverse)
    filler = vectors.T @ seen.filler @ vectors / np.outer(roots, roots)
    total = _sums(sums, Moments(seen.y_mean, seen.x_mean, transform))
    gram, xy, y_squares, mean, y_mean = _centred(model, total)
    x_mean, y_mean = seen.x_mean + mean @ inverse, seen.y_mean + y_mean
    return _Look(gram + filler, xy, y_squares, transform, inverse, filler, x_mean, y_mean)


def _sums(sums: Sums, statistic: Moments) -> Array:
    total = sums(statistic)
    if not np.isfinite(total).all():
        raise DivergedError(
            "The squares of the rows overflow. Scale the features (StandardScaler), or use float64."
        )
    return np.asarray(np.triu(total) + np.triu(total, 1).T)


def _check_norms(norms: Array, total: Array, d: int, small: float) -> None:
    """Check that no feature's squares vanish where its values do not."""
    sums, n = np.abs(total[:d, d]), total[d, d]
    # By Cauchy and Schwarz a mean is no larger than the root of the mean square.
    vanished = sums > 2 * np.sqrt(n) * norms
    vanished |= (norms > 0) & (norms < np.sqrt(n) * small)
    if vanished.any():
        raise DivergedError(
            f"The squares of feature {int(vanished.argmax())} are too small for float64. Scale the "
            "features (StandardScaler)."
        )


def _centred(model: Any, total: Array) -> tuple[Array, Array, Array, Array, Array]:
    """Gram matrix, products with y, squares of y, and the means that they are about."""
    d = model.n_features
    n, mean = total[d, d], total[d] / total[d, d]
    if not model.fit_intercept:
        mean = np.zeros(len(mean))
    moments = total - n * np.outer(mean, mean)
    y_squares = np.maximum(np.diag(moments)[d + 1 :], 0.0)
    return moments[:d, :d], moments[:d, d + 1 :], y_squares, mean[:d], mean[d + 1 :]


def _least_value(gram: Array) -> float:
    """About the smallest eigenvalue, by Cholesky; zero where there is none above zero."""
    root, failed = lapack.dpotrf(gram)
    if failed:
        return 0.0
    size = float(linalg.norm(gram, 1))
    return float(lapack.dpocon(root, size)[0]) * size
