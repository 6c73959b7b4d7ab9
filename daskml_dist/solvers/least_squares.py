r"""Least squares: all rows are reduced to a small problem, which SciPy or scikit-learn solves.

:func:`reduce_rows` reduces the rows to a problem with as many rows as features:
:math:`|X w - y|^2 = |R w - z|^2 + \mathrm{const}` for a square `R`, the Cholesky factor of the
Gram matrix. The condition number of the Gram matrix is the square of that of `X`. If too few
digits are left, the rows are read again: float32 rows in float64 and centred; then, rarely, rows
multiplied by the inverse of the factor. This is shifted CholeskyQR (Fukaya et al., "Shifted
Cholesky QR for computing the QR factorization of ill-conditioned matrices", SIAM J. Sci. Comput.
42, 2020): as accurate as a QR factorisation of the rows, though each pass is only a sum over rows.
Usually one pass suffices, at the speed of a symmetric matrix product. TSQR (Demmel et al., 2012)
would always cost several times as much, and is not a sum.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize
from scipy.linalg import lapack
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from daskml_dist.backends.base import Backend
from daskml_dist.backends.namespace import cast, namespace, ones
from daskml_dist.errors import DivergedError, TrainingError
from daskml_dist.models.base import BatchRows
from daskml_dist.solvers.base import Array, Solution, Solver, Statistic, Sums, initial_parameters
from daskml_dist.solvers.rows import (
    check_squares_finite,
    request_finite_sum,
    row_tiles,
    to_dense_float64,
)

#: Bytes of a tile of a dense block (2 MiB): it stays in a processor's cache with its product.
_PIECE_BYTES = 2**21
#: Least rows of a tile, so that adding its product is cheap beside computing it.
_MIN_PIECE_ROWS = 2048
#: Most passes: each resolves condition numbers about 1e7 times as large as the one before.
MAX_REDUCTION_PASSES = 4
#: Least ratio of the smallest eigenvalue to `eps` at which float32 products give coefficients right
#: to about 1e-5 (measured over condition numbers and offsets). For float64 the square root of `eps`
#: is the larger bound.
_MIN_EIGENVALUE_RATIO = 1e5
#: Most features for which that ratio is enough; with more, it grows with the root of their number
#: (measured likewise).
_FEW_FEATURES = 50
#: Relative precision of float64.
_EPS = float(np.finfo(np.float64).eps)
#: Least root mean square of a feature whose squares do not underflow, in float64 and float32.
_MIN_RMS_DOUBLE, _MIN_RMS_SINGLE = 1e-146, 1e-15
#: Multiple of the square root of the products' error from which a singular value is not zero.
_DISTINCT_ROOTS = 4.0
#: Warning that starts with scikit-learn's text, which users may filter by.
_GAP_MESSAGE = (
    "Objective did not converge. You might want to increase the number of iterations. The duality "
    "gap is {:.3g}"
)
#: Singular values below this share of the largest are rounding errors.
SINGULAR_CUTOFF = 1e-12
#: Most changes of the active set for each feature: ten times SciPy's default.
_MAX_CHANGES_PER_FEATURE = 30


@dataclass(frozen=True, eq=False)
class SecondMoments(Statistic):
    """Upper triangle of ``A.T @ A`` for the rows ``A = [X, 1, y - y_shift]``, weighted.

    In the first pass dense rows are multiplied in their own dtype, at the speed of BLAS. Later
    passes have an `x_shift`: they replace X by ``X - x_shift``, or by
    ``(X - x_shift) @ transform``, in float64, and make sparse rows dense, a tile at a time.

    Parameters
    ----------
    y_shift : ndarray of float64 of shape (n_targets,)
    x_shift : ndarray of float64 of shape (n_features,), or None
        None: the first pass.
    transform : ndarray of float64 of shape (n_features, n_features), or None
    """

    y_shift: Array
    x_shift: Array | None = None
    transform: Array | None = None
    in_parts: ClassVar[bool] = True
    #: The sums include the square of every entry.
    shows_not_finite = True

    def shape(self, model: Any) -> tuple[int, ...]:
        """Return one row and column for each feature, for the 1, and for each target."""
        n = model.n_features + 1 + len(self.y_shift)
        return n, n

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> None:
        """Add the moments of some rows, a tile at a time."""
        is_shifted = self.x_shift is not None
        tiles = row_tiles(
            rows.X, backend, dense=is_shifted, cached=_PIECE_BYTES, at_least=_MIN_PIECE_ROWS
        )
        # The solver sees an overflow in the sums.
        with np.errstate(over="ignore", invalid="ignore"):
            if is_shifted:
                for tile in tiles:
                    self._add_shifted(rows.part(tile, backend), out, backend)
            else:
                self._add_plain(rows, tiles, out, backend)

    def _add_plain(
        self, rows: BatchRows, tiles: Iterable[slice], out: Any, backend: Backend
    ) -> None:
        d, weight, side_columns = rows.X.shape[1], rows.weight, self._side_columns(rows.y, backend)
        weighted = side_columns if weight is None else side_columns * weight[:, None]
        out[d:, d:] += weighted.T @ side_columns
        for tile in tiles:
            tile_weight = None if weight is None else weight[tile]
            X = backend.rows(rows.X, tile)
            backend.add_products(X, side_columns[tile, ...], tile_weight, out[:d, ...])

    def _add_shifted(self, tile_rows: BatchRows, out: Any, backend: Backend) -> None:
        assert self.x_shift is not None
        side_columns, weight = self._side_columns(tile_rows.y, backend), tile_rows.weight
        rows = to_dense_float64(tile_rows.X) - backend.to_device(self.x_shift)
        xp = namespace(rows)
        if self.transform is not None:
            rows = rows @ backend.to_device(self.transform)
        rows = xp.concat([rows, side_columns], axis=1)
        if weight is not None:
            # (sqrt(w) A).T @ (sqrt(w) A) = A.T @ diag(w) @ A
            rows *= xp.sqrt(cast(weight, rows.dtype))[:, None]
        out += rows.T @ rows

    def _side_columns(self, y: Any, backend: Backend) -> Any:
        """Return the columns beside X: 1 and the targets."""
        xp = namespace(y)
        targets = xp.reshape(y, (y.shape[0], -1)) - backend.to_device(self.y_shift)
        return xp.concat([ones((y.shape[0], 1), targets.dtype, like=y), targets], axis=1)


@dataclass(frozen=True)
class ReducedProblem:
    """Least-squares problem of few rows; centred if the model has an intercept.

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
        Number of passes over the rows.
    """

    R: Array
    z: Array
    y_squares: Array
    x_mean: Array
    y_mean: Array
    n_looks: int


def reduce_rows(
    model: Any, sums: Sums, *, eps: float, l2: float, cut: float, sparse: bool
) -> ReducedProblem:
    """Return the reduced problem of all rows, with as many passes as its condition needs.

    Parameters
    ----------
    model : Model
    sums : Sums
    eps : float
        Relative precision of the products of the first pass.
    l2 : float
        Penalty on the sum of squares, which improves the condition.
    cut : float
        Singular values below this share of the largest count as 0; 0: none does.
    sparse : bool
        Whether there are sparse rows, whose further passes are expensive: directions within the
        error of the products then count as 0 too, if `cut` is not 0.
    """
    y_shift = np.zeros(model.width)  # the model's own shift leaves the targets near zero
    try:
        products = _sum_plain_rows(model, sums, SecondMoments(y_shift), eps)
    except DivergedError:
        if eps <= _EPS:
            raise
        # The squares overflow in float32: use float64.
        moments, eps = SecondMoments(y_shift, np.zeros(model.n_features)), _EPS
        products = _sum_plain_rows(model, sums, moments)
    floor = 0.0
    for n_looks in range(1, MAX_REDUCTION_PASSES + 1):
        # The Gram matrix is scaled to a diagonal of about 1; so is the penalty.
        penalised = products.gram + l2 * products.transform.T @ products.transform
        check_squares_finite(penalised)
        # Smaller eigenvalues may be rounding errors of the products.
        n_features = len(penalised)
        ratio = _MIN_EIGENVALUE_RATIO * max(1.0, np.sqrt(n_features / _FEW_FEATURES))
        min_certain = max(ratio * eps, np.sqrt(eps))
        if _is_well_conditioned(penalised, min_certain):
            floor = 0.0
            break
        floor = min_certain if cut else 0.0
        is_last = n_looks == MAX_REDUCTION_PASSES or sums.should_stop
        # Too few digits: unless the uncertain directions are negligible, read the rows again; first
        # float32 rows in float64, for which the directions themselves are not needed.
        if eps <= _EPS or cut or is_last:
            values, vectors = linalg.eigh(penalised)
            # Shift by a bound on the eigenvalues' errors, the norm of errors `eps` of all entries.
            roots = np.sqrt(np.maximum(values, 0.0) + len(values) * eps)
            rows = roots[:, None] * (vectors.T @ products.inverse)
            is_known = values > floor
            min_cut = _DISTINCT_ROOTS * np.sqrt(len(values) * eps) if sparse and cut else 0.0
            if is_last or _are_negligible(rows, is_known, max(cut, min_cut)):
                break
        if eps > _EPS:
            products = _sum_plain_rows(model, sums, SecondMoments(products.y_mean, products.x_mean))
            eps = _EPS
        else:
            products = _sum_transformed_rows(model, sums, products, vectors, roots)
    R, z = products.factor(floor)
    return ReducedProblem(R, z, products.y_squares, products.x_mean, products.y_mean, n_looks)


def _are_negligible(rows: Array, is_known: NDArray[np.bool_], cut: float) -> bool:
    """Return whether the singular values of all directions that are not known are below the cut."""
    if not cut or not is_known.any():
        return False
    # A factor of 2 for the errors of the norms.
    return bool(2 * linalg.norm(rows[~is_known], 2) <= cut * linalg.norm(rows[is_known], 2))


@dataclass(frozen=True)
class _RowProducts:
    """Products of the rows ``U = (X - x_mean) @ transform``; `inverse` is that of `transform`.

    `filler` was added to `gram` for features that are zero everywhere, so that it is not singular.
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
        """Return `R` and `z` of the directions whose eigenvalues are above `floor`."""
        if not floor:
            # Well conditioned: R is the Cholesky factor.
            with suppress(linalg.LinAlgError):
                root = linalg.cholesky(self.gram)
                return root @ self.inverse, linalg.solve_triangular(root, self.xy, trans="T")
        # Rank deficient: R is V.T times the roots of the eigenvalues that are kept.
        values, vectors = linalg.eigh(self.gram)
        is_kept = values > floor
        roots, vectors = np.sqrt(values[is_kept])[:, None], vectors[:, is_kept]
        return roots * (vectors.T @ self.inverse), vectors.T @ self.xy / roots


def _sum_plain_rows(
    model: Any, sums: Sums, statistic: SecondMoments, eps: float = _EPS
) -> _RowProducts:
    """Return the products of the rows, with each feature scaled by its norm."""
    total = _sum_checked(sums, statistic)
    norms = np.sqrt(np.diag(total)[: model.n_features])
    _check_underflow(
        norms, total, model.n_features, _MIN_RMS_DOUBLE if eps <= _EPS else _MIN_RMS_SINGLE
    )
    scales = np.divide(1.0, norms, out=np.zeros(len(norms)), where=norms > 0)
    gram, xy, y_squares, x_mean, y_mean = _centre_products(model, total)
    # Ones on the diagonal for features that are zero everywhere, so that Cholesky goes through.
    filler = np.diag(np.where(norms > 0, 0.0, 1.0))
    return _RowProducts(
        gram * scales[:, None] * scales + filler,
        xy * scales[:, None],
        y_squares,
        np.diag(scales),
        np.diag(norms),
        filler,
        x_mean if statistic.x_shift is None else x_mean + statistic.x_shift,
        y_mean + statistic.y_shift,
    )


def _sum_transformed_rows(
    model: Any, sums: Sums, last_products: _RowProducts, vectors: Array, roots: Array
) -> _RowProducts:
    """Return the products of the rows times the inverse of the factor of the last pass."""
    # Second step of CholeskyQR: these rows are nearly orthonormal.
    transform = last_products.transform @ vectors / roots
    inverse = roots[:, None] * (vectors.T @ last_products.inverse)
    filler = vectors.T @ last_products.filler @ vectors / np.outer(roots, roots)
    total = _sum_checked(sums, SecondMoments(last_products.y_mean, last_products.x_mean, transform))
    gram, xy, y_squares, mean, y_mean = _centre_products(model, total)
    x_mean, y_mean = last_products.x_mean + mean @ inverse, last_products.y_mean + y_mean
    return _RowProducts(gram + filler, xy, y_squares, transform, inverse, filler, x_mean, y_mean)


def _sum_checked(sums: Sums, statistic: SecondMoments) -> Array:
    """Return the symmetric matrix of second moments; raise if it is not finite."""
    total = request_finite_sum(sums, statistic)
    return np.asarray(np.triu(total) + np.triu(total, 1).T)


def _check_underflow(norms: Array, total: Array, d: int, min_magnitude: float) -> None:
    """Raise if the squares of a feature underflow though its values do not."""
    sums, n = np.abs(total[:d, d]), total[d, d]
    # By the Cauchy-Schwarz inequality |sum| <= sqrt(n) * norm, unless squares underflowed.
    vanished = sums > 2 * np.sqrt(n) * norms
    vanished |= (norms > 0) & (norms < np.sqrt(n) * min_magnitude)
    if vanished.any():
        raise DivergedError(
            f"The squares of feature {int(vanished.argmax())} are too small for float64. Scale the "
            "features (StandardScaler)."
        )


def _centre_products(model: Any, total: Array) -> tuple[Array, Array, Array, Array, Array]:
    """Return Gram matrix, products with y, squares of y, and means, centred with an intercept."""
    d = model.n_features
    n, mean = total[d, d], total[d] / total[d, d]
    if not model.fit_intercept:
        mean = np.zeros(len(mean))
    # Products about the means, from those about the origin.
    moments = total - n * np.outer(mean, mean)
    y_squares = np.maximum(np.diag(moments)[d + 1 :], 0.0)
    return moments[:d, :d], moments[:d, d + 1 :], y_squares, mean[:d], mean[d + 1 :]


def _is_well_conditioned(gram: Array, certain: float) -> bool:
    """Return whether all eigenvalues of a matrix are at least `certain`."""
    root, failed = lapack.dpotrf(gram)
    if failed:
        return False
    # A bound of the smallest eigenvalue, 1 / norm(inverse, 1), is too small by a factor of sqrt(n)
    # at most; LAPACK's estimate of the norm, by a factor of about 3.
    size = float(linalg.norm(gram, 1))
    bound = float(lapack.dpocon(root, size)[0]) * size
    if bound >= certain or 3 * np.sqrt(len(gram)) * bound < certain:
        return bool(bound >= certain)
    # Lanczos iterations with the inverse, whose largest eigenvalue converges first: a few products
    # with the factor, far less than another pass over the rows.
    inverse = LinearOperator(
        gram.shape, lambda vector: linalg.cho_solve((root, False), vector), dtype=gram.dtype
    )
    start = np.random.default_rng(0).normal(size=len(gram))
    with suppress(ArpackError):
        (largest,) = eigsh(inverse, k=1, v0=start, tol=0.01, return_eigenvectors=False)
        return bool(largest * certain <= 1)
    return False


@dataclass(frozen=True, eq=False, kw_only=True)
class LeastSquaresSolver(Solver):
    """Base class of solvers that need only the second moments of the rows.

    Parameters
    ----------
    eps : float
        Relative precision of the products of dense rows: that of their dtype; of sparse rows:
        float64's.
    sparse : bool
        Whether there are sparse rows, which further passes make dense, a tile at a time.
    """

    name = "least_squares"
    eps: float
    sparse: bool
    #: The most passes; usually one suffices.
    max_passes = MAX_REDUCTION_PASSES

    @property
    def _smallest_penalty(self) -> float:
        """Return the least penalty on the sum of squares, which improves the condition."""
        return 0.0

    @property
    def _rank_cutoff(self) -> float:
        """Return the share of the largest singular value below which others count as zero."""
        return 0.0

    @abstractmethod
    def _solve_coefficients(
        self, reduced: ReducedProblem, n_rows: int, start: Array
    ) -> tuple[Array, dict[str, Any]]:
        """Return coefficients (n_features, n_targets), and other fields of the solution."""

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Reduce the rows and solve."""
        reduced = reduce_rows(
            model,
            sums,
            eps=self.eps,
            l2=self._smallest_penalty,
            cut=self._rank_cutoff,
            sparse=self.sparse,
        )
        return self.of_reduced(model, reduced, sums.n_rows, start)

    def of_reduced(
        self, model: Any, reduced: ReducedProblem, n_rows: int, start: Array | None = None
    ) -> Solution:
        """Solve a problem that is reduced already."""
        coef, facts = self._solve_coefficients(
            reduced, n_rows, initial_parameters(model, start)[: model.n_features]
        )
        if model.fit_intercept:
            coef = np.vstack([coef, reduced.y_mean - reduced.x_mean @ coef])
        return Solution(coef, **facts)


@dataclass(frozen=True, eq=False, kw_only=True)
class OrdinaryLeastSquares(LeastSquaresSolver):
    """The least-squares solution of least norm.

    Parameters
    ----------
    tol : float
        Singular values below this share of the largest count as zero.
    positive : bool
        No coefficient is negative.
    mean_weight : float
        Number by which the rows' weights were divided to have mean 1.

    Examples
    --------
    >>> from daskml_dist.solvers import OrdinaryLeastSquares
    >>> solver = OrdinaryLeastSquares(
    ...     eps=2.2e-16, sparse=False, tol=1e-6, positive=False, mean_weight=1.0
    ... )
    >>> solver.name, solver.tol
    ('least_squares', 1e-06)
    """

    tol: float
    positive: bool
    mean_weight: float

    @property
    def _rank_cutoff(self) -> float:
        return self.tol

    def _solve_coefficients(
        self, reduced: ReducedProblem, n_rows: int, start: Array
    ) -> tuple[Array, dict[str, Any]]:
        if self.positive:
            coef = solve_nonnegative(_zero_constant_columns(reduced, n_rows), reduced.z)
            return coef, {"n_iter": reduced.n_looks}
        n_values = min(n_rows, len(start))
        singular = np.zeros(n_values)
        coef, rank = np.zeros(start.shape), 0
        if len(reduced.R):
            # LAPACK's least-norm solution of the small problem.
            coef, _, rank, values = linalg.lstsq(reduced.R, reduced.z, cond=self.tol)
            singular[: len(values)] = values[:n_values]
        extra = {"rank": int(rank), "singular": singular * np.sqrt(self.mean_weight)}
        # scikit-learn has neither for sparse rows; here small values would have too few digits.
        return coef, {"n_iter": reduced.n_looks, "extra": {} if self.sparse else extra}


@dataclass(frozen=True, eq=False, kw_only=True)
class RidgeLeastSquares(LeastSquaresSolver):
    """Least squares with a squared-norm penalty.

    Parameters
    ----------
    alpha : ndarray of float64 of shape (n_targets,)
        Penalty of the sum over rows, for each target.
    method : {"auto", "cholesky", "svd"}
        ``"auto"``: Cholesky, unless the reduction needed more than one pass.
    positive : bool
        No coefficient is negative.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.solvers import RidgeLeastSquares
    >>> solver = RidgeLeastSquares(
    ...     eps=2.2e-16, sparse=False, alpha=np.array([1.0]), method="cholesky", positive=False
    ... )
    >>> solver.name, solver.method
    ('least_squares', 'cholesky')
    """

    alpha: Array
    method: str
    positive: bool

    @property
    def _smallest_penalty(self) -> float:
        return float(self.alpha.min())

    @property
    def _rank_cutoff(self) -> float:
        return 0.0 if self._smallest_penalty else SINGULAR_CUTOFF

    def _solve_coefficients(
        self, reduced: ReducedProblem, n_rows: int, start: Array
    ) -> tuple[Array, dict[str, Any]]:
        solver, coef = self._solve_penalised(reduced, n_rows)
        return coef, {"n_iter": reduced.n_looks, "extra": {"solver": solver}}

    def _solve_penalised(self, reduced: ReducedProblem, n_rows: int) -> tuple[str, Array]:
        """Return the method used, and the coefficients."""
        if self.positive:
            R, targets = _zero_constant_columns(reduced, n_rows), range(len(self.alpha))
            return "lbfgs", np.hstack(
                [self._solve_one_nonnegative(R, reduced.z, t) for t in targets]
            )
        if self.method == "cholesky" or (self.method == "auto" and reduced.n_looks == 1):
            with suppress(linalg.LinAlgError):
                return "cholesky", self._solve_by_cholesky(reduced)
        return "svd", self._solve_by_svd(reduced)

    def _solve_by_svd(self, reduced: ReducedProblem) -> Array:
        U, values, Vt = linalg.svd(reduced.R, full_matrices=False)
        values = np.where(values > SINGULAR_CUTOFF * values.max(initial=0.0), values, 0.0)[:, None]
        out = np.zeros((len(values), len(self.alpha)))
        # Singular values shrink by s / (s^2 + alpha); those that are rounding count as zero.
        shrunk = np.divide(values, values**2 + self.alpha, out=out, where=values > 0)
        return np.asarray(Vt.T @ (shrunk * (U.T @ reduced.z)))

    def _solve_by_cholesky(self, reduced: ReducedProblem) -> Array:
        gram, xy = reduced.R.T @ reduced.R, reduced.R.T @ reduced.z
        coef = np.empty(xy.shape)
        # One factorisation for all targets of the same penalty.
        for alpha in np.unique(self.alpha):
            targets = self.alpha == alpha
            penalised = gram + alpha * np.eye(len(gram))
            coef[:, targets] = linalg.cho_solve(linalg.cho_factor(penalised), xy[:, targets])
        return coef

    def _solve_one_nonnegative(self, R: Array, z: Array, target: int) -> Array:
        """Solve for one target; the penalty is appended to the problem as rows."""
        d = R.shape[1]
        rows = np.vstack([R, np.sqrt(self.alpha[target]) * np.eye(d)])
        z = np.vstack([z[:, [target]], np.zeros((d, 1))])
        return solve_nonnegative(rows, z)


def _zero_constant_columns(reduced: ReducedProblem, n_rows: int) -> Array:
    """Return `R` with zeros for features whose column is only rounding error after centring.

    A constant feature's column is about 1e-16, and a coefficient of 1e13 would fit it to the
    remainder.
    """
    squares = np.einsum("ij,ij->j", reduced.R, reduced.R)
    varies = squares > SINGULAR_CUTOFF**2 * (squares + n_rows * reduced.x_mean**2)
    return np.where(varies, reduced.R, 0.0)


def solve_nonnegative(R: Array, z: Array) -> Array:
    """Solve least squares with non-negative coefficients for each column of `z`."""
    if not R.any():  # no row has information; SciPy would return uninitialised memory
        return np.zeros((R.shape[1], z.shape[1]))
    try:
        columns = [
            optimize.nnls(R, column, maxiter=_MAX_CHANGES_PER_FEATURE * R.shape[1])[0]
            for column in z.T
        ]
    except RuntimeError as error:
        raise TrainingError(
            f"Non-negative least squares failed: {error}. Scale the features (StandardScaler), or "
            "drop some that nearly repeat others."
        ) from error
    return np.array(columns).T


@dataclass(frozen=True, eq=False, kw_only=True)
class CoordinateDescent(LeastSquaresSolver):
    """Half the mean squared error plus ``alpha * (l1_ratio |w|_1 + (1 - l1_ratio) / 2 |w|^2)``.

    Parameters
    ----------
    alpha, l1_ratio : float
    n_rows : int
        Rows of the fit.
    max_iter : int
        Most cycles over the features.
    tol : float
        Duality gap to stop at, as a share of the mean squared target.
    positive : bool
    selection : {"cyclic", "random"}
    seed : int
        Seed of the order in which features are drawn.

    References
    ----------
    J. Friedman, T. Hastie and R. Tibshirani, "Regularization paths for generalized linear models
    via coordinate descent", Journal of Statistical Software 33, 2010.

    Examples
    --------
    >>> from daskml_dist.solvers import CoordinateDescent
    >>> solver = CoordinateDescent(
    ...     eps=2.2e-16, sparse=False, alpha=0.1, l1_ratio=1.0, n_rows=100, max_iter=1000, tol=1e-4,
    ...     positive=False, selection="cyclic", seed=0,
    ... )
    >>> solver.name, solver.alpha
    ('least_squares', 0.1)
    """

    alpha: float
    l1_ratio: float
    n_rows: int
    max_iter: int
    tol: float
    positive: bool
    selection: str
    seed: int

    @property
    def _smallest_penalty(self) -> float:
        # Directions that are small beside the penalty are shrunk away, by l1 as by l2.
        return self.alpha * self.n_rows

    def _solve_coefficients(
        self, reduced: ReducedProblem, n_rows: int, start: Array
    ) -> tuple[Array, dict[str, Any]]:
        # The mean problem, one target after the other.
        R, z = reduced.R / np.sqrt(n_rows), reduced.z / np.sqrt(n_rows)
        gram, xy = R.T @ R, np.asfortranarray(R.T @ z)
        squares = reduced.y_squares / n_rows
        coef, gaps, n_iters = np.empty(xy.shape), list[float](), list[int]()
        for t, square in enumerate(squares):
            coefs, (gap,), (n_iter,) = follow_elastic_path(
                gram,
                xy[:, t],
                square,
                [self.alpha],
                l1_ratio=self.l1_ratio,
                coef_init=np.array(start[:, t]),
                max_iter=self.max_iter,
                tol=self.tol,
                positive=self.positive,
                selection=self.selection,
                random_state=self.seed,
            )
            coef[:, t] = coefs[:, 0]
            gaps.append(float(gap))
            n_iters.append(int(n_iter))
        large_gaps = [
            gap for gap, square in zip(gaps, squares, strict=True) if not gap <= self.tol * square
        ]
        return coef, {
            "n_iter": max(n_iters),
            "converged": not large_gaps,
            "message": _GAP_MESSAGE.format(large_gaps[0]) if large_gaps else "",
            "extra": {"dual_gap": gaps, "n_iter": n_iters},
        }


def follow_elastic_path(
    gram: Array, xy: Array, square: float, alphas: Any, **options: Any
) -> tuple[Array, Array, list[int]]:
    """Return coefficients (n_features, n_alphas), duality gaps and cycles for decreasing strengths.

    By scikit-learn's `enet_path` and its `options`, of a mean problem given by X'X / n, X'y / n and
    y'y / n.
    """
    # Slow to import, and not needed by other solvers.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import enet_path

    with warnings.catch_warnings():
        # The estimator warns, in the user's process.
        warnings.simplefilter("ignore", ConvergenceWarning)
        # Besides the products it reads only the number of rows and the squares of y: one row with
        # the root of y'y / n as target is enough.
        _, coefs, gaps, n_iters = enet_path(
            np.zeros((1, len(xy)), order="F"),
            np.array([np.sqrt(square)]),
            alphas=alphas,
            precompute=gram,
            Xy=xy,
            return_n_iter=True,
            check_input=False,
            **options,
        )
    return coefs, gaps, n_iters
