"""Principal components and singular vectors of all rows.

:class:`CovarianceEigenSolver` computes the covariance in one pass; each block is shifted by a point
near its mean, against cancellation. :class:`PowerIterations` is for many features, whose covariance
would be too large: each of its passes multiplies the Gram matrix by few vectors, without forming it
(randomised, in a block Krylov space, or by ARPACK).

References
----------
I. T. Jolliffe, "Principal component analysis", 2nd edition, Springer 2002. T. F. Chan, G. H.
Golub and R. J. LeVeque, "Algorithms for computing the sample variance: analysis and
recommendations", The American Statistician 37(3), 1983. N. Halko, P. G. Martinsson and J. A.
Tropp, "Finding structure with randomness: probabilistic algorithms for constructing approximate
matrix decompositions", SIAM Review 53(2), 2011. C. Musco and C. Musco, "Randomized block Krylov
methods for stronger and faster approximate singular value decomposition", NIPS 2015.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy import linalg
from scipy.sparse.linalg import LinearOperator, eigsh

from daskml_dist.backends.base import Backend, is_sparse
from daskml_dist.backends.namespace import arithmetic_dtype, cast, namespace, ones, total, zeros
from daskml_dist.backends.numpy_backend import add_matmul
from daskml_dist.errors import DivergedError
from daskml_dist.models.base import BatchRows
from daskml_dist.solvers.base import Array, Solution, Solver, Statistic, Sums
from daskml_dist.solvers.rows import (
    request_finite_sum,
    row_tiles,
    sum_of_squares,
    to_dense_float64,
    to_rows_dtype,
)

#: Most features for which all eigenvectors are computed, which is then cheap.
_MAX_FULL_FEATURES = 500
#: Rows at the start of a block whose mean is its shift: near enough to the block's mean.
_SHIFT_ROWS = 1024
#: Bytes of a tile of a dense block (2 MiB): it stays in a processor's cache with its product.
_SCATTER_PIECE_BYTES = 2**21
#: Fewest rows of a tile, so that adding its product is cheap beside computing it.
_MIN_PIECE_ROWS = 2048
#: Bytes of a tile of a dense block (2 MiB): a processor's cache holds it for both products.
_PIECE_BYTES = 1 << 21
#: Most numbers of a Krylov space that is kept (1 GiB); without one, more passes are needed.
_MAX_KEPT_NUMBERS = 1 << 27
#: Ratio of the Cholesky factor's smallest to largest diagonal: below the first QR is used instead,
#: below the second CholeskyQR is repeated.
_MIN_CHOLESKY_RATIO, _SAFE_CHOLESKY_RATIO = 1e-6, 1e-2
#: Share of its length that an image must keep after projections on earlier blocks; else it is
#: projected again.
_REORTHOGONALIZE_RATIO = 1e-3
#: Least mean square of the rows (2e-308) at which no digits of float64 are lost to underflow.
_MIN_MEAN_SQUARE = float(np.finfo(np.float64).tiny)
#: Vectors of ARPACK's subspace for each component (SciPy's default), and most restarts.
_LANCZOS_FACTOR, _MAX_RESTARTS = 2, 100


@dataclass(frozen=True, eq=False)
class CovarianceEigenSolver(Solver):
    """Solver of the eigenvectors of the covariance, by LAPACK; the covariance takes one pass.

    Parameters
    ----------
    n_components : int or None
        Number of eigenvectors, of the largest eigenvalues; None: all.
    double : bool
        Whether products of float32 rows are computed in float64.
    centred : bool, default=True
        Whether the mean is subtracted. False: eigenvectors of the uncentred second moments.
    """

    name = "covariance_eigh"
    n_components: int | None
    double: bool
    centred: bool = True
    max_passes = 1

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Return eigenvectors as rows, and eigenvalues and mean as `extra`."""
        mean, covariance = _sum_mean_covariance(sums, double=self.double)
        centred, variance = covariance, float(np.trace(covariance))
        if not self.centred:
            # Uncentred: the mean product of rows is the covariance plus the mean's square.
            covariance = centred + mean[:, None] * mean[None, :]
        # With many features, LAPACK computes only the wanted eigenvectors.
        d, wanted_range = len(covariance), None
        if self.n_components is not None and d > _MAX_FULL_FEATURES:
            wanted_range = [d - max(self.n_components, 1), d - 1]
        trace = float(np.trace(covariance))
        _check_underflow(mean, trace)
        values, vectors = linalg.eigh(
            covariance, subset_by_index=wanted_range, overwrite_a=True, check_finite=False
        )
        values = np.maximum(values[::-1], 0.0)
        extra = {"values": values, "mean": mean, "total": trace, "variance": variance}
        components = _fix_vector_signs(vectors.T[::-1])
        if not self.centred:
            # Not the mean squares less the squared means, which lose the digits of a large mean.
            extra["projected"] = np.einsum("ij,ij->i", components @ centred, components)
        return Solution(components, extra=extra)


def _check_underflow(mean: Array, mean_square: float) -> None:
    """Raise if the squares of rows with a mean underflow though the rows are not zero."""
    # Rows that are all equal have no squares about their mean, whatever its size.
    vanished = mean_square == 0 and 0 < np.abs(mean).max() < np.sqrt(_MIN_MEAN_SQUARE)
    if vanished or 0 < mean_square < _MIN_MEAN_SQUARE:
        raise DivergedError(
            "The squares of the rows are too small for float64. Scale the features "
            "(StandardScaler)."
        )


def _fix_vector_signs(vectors: Array) -> Array:
    """Return row vectors with the largest component of each positive, as scikit-learn does."""
    largest = vectors[np.arange(len(vectors)), np.abs(vectors).argmax(axis=1)]
    return vectors * np.where(largest < 0, -1.0, 1.0)[:, None]


@dataclass(frozen=True, eq=False)
class GramProducts(Statistic):
    """Products ``A.T @ (A @ vectors)`` of the rows ``A = X - shift``, and the sum of the rows.

    The last column is the sum of the rows of A; the first number of the last row is the sum of
    their squares. With `bare` there is neither.

    Parameters
    ----------
    vectors : ndarray of shape (n_features, m)
    shift : ndarray of shape (n_features,) or None
        Subtracted from each row. Sparse rows stay sparse: the products are corrected instead.
    squares : bool, default=True
        Whether to sum the squares; otherwise their place is 0.
    bare : bool, default=False
        Whether the result is only the products, of rows without a shift.
    """

    vectors: Array
    shift: Array | None = None
    squares: bool = True
    bare: bool = False
    in_parts: ClassVar[bool] = True
    #: The products and the sum of the rows include all entries.
    shows_not_finite = True

    def shape(self, model: Any) -> tuple[int, ...]:
        n_more = 0 if self.bare else 1
        return model.n_features + n_more, self.vectors.shape[1] + n_more

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> None:
        vectors = to_rows_dtype(self.vectors, rows.X, backend)
        shift = None if self.shift is None else to_rows_dtype(self.shift, rows.X, backend)
        with np.errstate(over="ignore", invalid="ignore"):  # the sums show it
            for tile in row_tiles(rows.X, backend, cached=_PIECE_BYTES):
                self._add_products(rows.part(tile, backend), vectors, shift, out, backend)

    def _add_products(
        self, rows: BatchRows, vectors: Any, shift: Any | None, out: Any, backend: Backend
    ) -> None:
        if is_sparse(rows.X) and shift is not None:
            self._add_shifted_sparse(rows, vectors, shift, out, backend)
            return
        X = rows.X if shift is None else rows.X - shift
        if self.bare:
            products = namespace(vectors).reshape(backend.dot(X, vectors), (X.shape[0], -1))
            weight = rows.weight
            products = (
                products if weight is None else products * cast(weight, products.dtype)[:, None]
            )
            backend.add_tdot(X, products, out)
            return
        products = _weighted_products(X, vectors, rows.weight, backend)
        backend.add_tdot(X, products, out[:-1, ...])
        if self.squares:
            out[-1, 0] += sum_of_squares(X, rows.weight, backend)

    def _add_shifted_sparse(
        self, rows: BatchRows, vectors: Any, shift: Any, out: Any, backend: Backend
    ) -> None:
        """Add the products of shifted sparse rows."""
        X, xp, m = rows.X, namespace(vectors), vectors.shape[1]
        # (X - s)' (X - s) V without making X dense: products with V and s, corrected by sums.
        products = _weighted_products(
            X, xp.concat([vectors, shift[:, None]], axis=1), rows.weight, backend
        )
        shift_sum = total(cast(products[:, m], out.dtype))
        weight = products[:, m + 1]
        shifted = products[:, :m] - weight[:, None] * (shift @ vectors)[None, :]
        shifted = xp.concat([shifted, weight[:, None]], axis=1)
        backend.add_tdot(X, shifted, out[:-1, ...])
        shift, column_sums = cast(shift, out.dtype), total(cast(shifted, out.dtype), axis=0)
        out[:-1, :] -= shift[:, None] * column_sums[None, :]
        if self.squares:
            squares = sum_of_squares(X, rows.weight, backend)
            out[-1, 0] += squares - 2 * shift_sum + column_sums[m] * (shift @ shift)


def _weighted_products(X: Any, vectors: Any, weight: Any | None, backend: Backend) -> Any:
    """Return weighted products of rows with vectors, and with 1 in a last column."""
    xp = namespace(vectors)
    products = xp.reshape(backend.dot(X, vectors), (X.shape[0], vectors.shape[1]))
    products = xp.concat([products, ones((X.shape[0], 1), products.dtype, like=products)], axis=1)
    return products if weight is None else products * cast(weight, products.dtype)[:, None]


@dataclass(frozen=True, eq=False)
class PowerIterations(Solver):
    """Solver of the largest singular values and right singular vectors of all rows.

    Parameters
    ----------
    n_components : int
    n_oversamples : int
        Further vectors that are iterated.
    n_iter : int
        Power iterations, one pass each, before the last pass. A block Krylov space, made of the
        vectors of all passes, needs fewer for the same accuracy.
    centred : bool
        Whether the rows' mean is subtracted from them.
    seed : int
        Seed of the initial vectors.
    lanczos : bool
        Whether ARPACK finds the vectors, with one vector a pass.
    tol : float
        Tolerance of ARPACK; 0: machine precision.
    """

    name = "randomized"
    n_components: int
    n_oversamples: int
    n_iter: int
    centred: bool
    seed: int
    lanczos: bool = False
    tol: float = 0.0

    @property
    def max_passes(self) -> int:
        """Return the passes: the mean, the iterations, and the last products."""
        steps = self.n_iter + 1
        if self.lanczos:
            steps = _MAX_RESTARTS * max(_LANCZOS_FACTOR * self.n_components + 1, 20) + 1
        return steps + 2

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Return the right singular vectors as rows; ``extra["values"]`` has squared values / n."""
        d = model.n_features
        shift = self._row_mean(d, sums)
        blocks = _KrylovBlocks(self._draw_vectors(d))
        if self.lanczos:
            blocks = _KrylovBlocks(self._run_lanczos(sums, blocks.last, shift))
        n_passes, max_blocks = (0, 1) if self.lanczos else self._plan_passes(d)
        # Block Krylov: each pass multiplies the last block by the Gram matrix.
        for _ in range(n_passes):
            blocks.add(self._multiply_gram(sums, blocks.last, shift), max_blocks)
            if sums.should_stop:
                break
        return self._extract_vectors(sums, blocks, shift)

    def _plan_passes(self, d: int) -> tuple[int, int]:
        """Return the number of passes before the last, and of how many the vectors are kept."""
        width = min(self.n_components + self.n_oversamples, d)
        # For an error of eps a Krylov space needs O(1 / sqrt(eps)) passes, power iterations
        # O(1 / eps) (Musco and Musco).
        n_passes = min(self.n_iter, 2 + self.n_iter // 3)
        # If memory does not hold all blocks, plain power iterations keep only the last one.
        if (n_passes + 1) * width * d > _MAX_KEPT_NUMBERS or (n_passes + 1) * width > d:
            return self.n_iter, 1
        return n_passes, n_passes + 1

    def _row_mean(self, d: int, sums: Sums) -> Array | None:
        """Return the mean of the rows if it is subtracted from them, else None."""
        if not self.centred:
            return None
        first = GramProducts(np.zeros((d, 0)), squares=False)
        return np.asarray(request_finite_sum(sums, first)[:-1, -1] / sums.n_rows)

    def _extract_vectors(
        self, sums: Sums, krylov_blocks: _KrylovBlocks, shift: Array | None
    ) -> Solution:
        """Return the best vectors of the subspace (Rayleigh-Ritz) as the solution."""
        k = self.n_components
        products = request_finite_sum(sums, GramProducts(krylov_blocks.last, shift)) / sums.n_rows
        values, vectors = krylov_blocks.best(products[:-1, :-1], k)
        best = _fix_vector_signs(vectors.T)
        squares = float(products[-1, 0])
        # The mean of shifted rows: a correction for the rounding of the shift.
        mean = products[:-1, -1]
        # The trace of the covariance: mean square minus the square of the mean.
        variance = max(0.0, squares - float(mean @ mean))
        _check_underflow(mean if shift is None else shift, squares)
        extra = {
            "values": np.maximum(values, 0.0),
            "mean": mean if shift is None else shift,
            "total": variance if self.centred else squares,
            "variance": variance,
        }
        return Solution(best, n_iter=self.n_iter, extra=extra)

    def _draw_vectors(self, d: int) -> Array:
        """Return random orthonormal vectors to start from."""
        width = 1 if self.lanczos else min(self.n_components + self.n_oversamples, d)
        vectors = np.random.default_rng(self.seed).standard_normal((d, width))
        return _orthonormalize(vectors)[0]

    def _run_lanczos(self, sums: Sums, first: Array, shift: Array | None) -> Array:
        """Return eigenvectors of the Gram matrix by ARPACK's restarted Lanczos method."""

        def product(v: Array) -> Array:
            return self._multiply_gram(sums, v.reshape(-1, 1), shift)[:, 0]

        d = len(first)
        operator = LinearOperator((d, d), matvec=product, dtype=np.float64)
        return np.asarray(
            eigsh(
                operator, k=self.n_components, v0=first[:, 0], tol=self.tol, maxiter=_MAX_RESTARTS
            )[1]
        )

    def _multiply_gram(self, sums: Sums, vectors: Array, shift: Array | None) -> Array:
        """Return the Gram matrix of all rows, divided by their number, times some vectors."""
        if shift is None:
            products = GramProducts(vectors, squares=False, bare=True)
            return request_finite_sum(sums, products) / sums.n_rows
        products = GramProducts(vectors, shift, squares=False)
        return request_finite_sum(sums, products)[:-1, :-1] / sums.n_rows


class _KrylovBlocks:
    """Orthonormal blocks of vectors, one a pass, and their products with each block's image.

    The image of a block is its product with the Gram matrix.

    Parameters
    ----------
    first : ndarray of shape (n_features, m)

    Attributes
    ----------
    last : ndarray of shape (n_features, m)
        The last block.
    """

    def __init__(self, first: Array) -> None:
        self.last = first
        self._blocks = [first]
        #: For each block but the last, the products of all blocks before it and itself with its
        #: image.
        self._products: list[list[Array]] = []

    def add(self, image: Array, max_blocks: int) -> None:
        """Append a block: the image of the last one, made orthonormal to the blocks that are kept.

        `image` is overwritten. With `max_blocks` blocks kept, all are dropped first.
        """
        if len(self._blocks) == max_blocks:
            self._blocks, self._products = [], []
        products = self._project_out(image)
        self.last, smallest = _orthonormalize(image)
        if self._blocks:
            self._products.append(products)
        # Digits were lost: orthogonalise again ("twice is enough", Kahan and Parlett).
        if any(smallest < _REORTHOGONALIZE_RATIO * np.abs(product).max() for product in products):
            self._project_out(self.last)
            self.last, _ = _orthonormalize(self.last)
        self._blocks.append(self.last)

    def _project_out(self, image: Array) -> list[Array]:
        """Subtract from `image`, in place, its projections on all blocks; return the products."""
        products = [block.T @ image for block in self._blocks]
        for block, product in zip(self._blocks, products, strict=True):
            add_matmul(block, -product, image)
        return products

    def best(self, image: Array, k: int) -> tuple[Array, Array]:
        """Return the k largest values and their vectors, given the last block's image."""
        self._products.append([block.T @ image for block in self._blocks])
        sizes = [block.shape[1] for block in self._blocks]
        ends = np.cumsum([0, *sizes])
        inner = np.zeros((ends[-1], ends[-1]))
        for j, of_block in enumerate(self._products):
            for i, product in enumerate(of_block):
                inner[ends[i] : ends[i + 1], ends[j] : ends[j + 1]] = product
                inner[ends[j] : ends[j + 1], ends[i] : ends[i + 1]] = product.T
        # Rayleigh-Ritz: eigenvectors of the Gram matrix within the subspace, first in the
        # coordinates of the blocks.
        values, ritz = linalg.eigh(inner)
        ritz = ritz[:, ::-1][:, :k]
        vectors = sum(block @ ritz[ends[i] : ends[i + 1]] for i, block in enumerate(self._blocks))
        return values[::-1][:k], np.asarray(vectors)


def _orthonormalize(vectors: Array) -> tuple[Array, float]:
    """Return orthonormal columns of the same space, and the least length of a residual.

    The residual of a vector is its part orthogonal to all before it.
    """
    smallest = np.inf
    for _ in range(2):
        # CholeskyQR, which is one product of matrices; repeated if the factor's diagonal shows that
        # digits were lost, and replaced by QR if too many were.
        factor, failed = linalg.lapack.dpotrf(vectors.T @ vectors)
        diagonal = np.diagonal(factor)
        if failed or not diagonal.min() > _MIN_CHOLESKY_RATIO * diagonal.max():
            return np.asarray(linalg.qr(vectors, mode="economic")[0]), 0.0
        vectors = vectors @ np.triu(linalg.lapack.dtrtri(factor)[0])
        smallest = min(smallest, float(diagonal.min()))
        if diagonal.min() > _SAFE_CHOLESKY_RATIO * diagonal.max():
            break
    return vectors, smallest


@dataclass(frozen=True, eq=False)
class ScatterStatistic(Statistic):
    """Sum of ``outer(x - mean, x - mean)``, then the mean, then the weight of the rows.

    A point near the mean of a block is subtracted from its dense rows, so that no digits are lost
    however far they are from the origin; the blocks' scatters are merged by their means.

    Parameters
    ----------
    double : bool
        Whether the products of float32 rows are computed in float64, rather than only summed in it.
    """

    double: bool
    additive = False
    in_parts: ClassVar[bool] = True
    #: The sums have the squares.
    shows_not_finite = True

    def shape(self, model: Any) -> tuple[int, ...]:
        """Return a row and a column for each feature, then the mean, then the weight."""
        return model.n_features + 2, model.n_features

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> None:
        n, d = rows.X.shape
        block_sums = zeros((d, d + 1), out.dtype, like=out)
        with np.errstate(over="ignore", invalid="ignore"):  # the sum shows it
            shift = self._add_products(rows, block_sums, backend)
            weight = float(n) if rows.weight is None else float(total(rows.weight))
            if not weight:
                return
            mean = block_sums[:, d] / weight
            scatter = block_sums[:, :d]
            scatter -= weight * mean[:, None] * mean[None, :]
            _merge_scatter(out, scatter, mean if shift is None else mean + shift, weight)

    def _add_products(self, rows: BatchRows, own_scatter: Any, backend: Backend) -> Any:
        """Add products of shifted rows with themselves and with 1; return the shift."""
        centre = None if is_sparse(rows.X) else self._estimate_centre(rows.X, backend)
        for tile in row_tiles(
            rows.X, backend, cached=_SCATTER_PIECE_BYTES, at_least=_MIN_PIECE_ROWS
        ):
            X = backend.rows(rows.X, tile)
            X = X if centre is None else cast(X, centre.dtype)
            weight = None if rows.weight is None else rows.weight[tile]
            ones_column = ones((X.shape[0], 1), X.dtype, like=own_scatter)
            backend.add_products(X, ones_column, weight, own_scatter, centre)
        return None if centre is None else cast(centre, own_scatter.dtype)

    def _estimate_centre(self, X: Any, backend: Backend) -> Any:
        """Return the mean of the first rows, in the dtype of the products."""
        first_rows = to_dense_float64(backend.rows(X, slice(0, min(_SHIFT_ROWS, X.shape[0]))))
        mean = total(first_rows, axis=0) / first_rows.shape[0]
        return mean if self.double else cast(mean, arithmetic_dtype(X))

    def merge(self, total: Array, part: Array) -> None:
        """Merge the scatter of other rows into `total`."""
        if part[-1, 0]:
            _merge_scatter(total, part[:-2], part[-2], float(part[-1, 0]))


def _merge_scatter(out: Any, scatter: Any, mean: Any, weight: float) -> None:
    """Merge the scatter of other rows into `out`, in place."""
    weight_before = float(out[-1, 0])
    weight_after = weight_before + weight
    difference = mean - out[-2, :]
    out[:-2, :] += scatter
    if weight_before:
        # Parallel-axis term of two groups of rows (Chan, Golub and LeVeque).
        out[:-2, :] += (weight_before * weight / weight_after) * (
            difference[:, None] * difference[None, :]
        )
    out[-2, :] += (weight / weight_after) * difference
    out[-1, 0] = weight_after


class _MeanCovariance(NamedTuple):
    """Mean, of shape (n_features,), and covariance of all rows."""

    mean: Array
    covariance: Array


def _sum_mean_covariance(sums: Sums, *, double: bool) -> _MeanCovariance:
    """Return mean and covariance of all rows, in one pass."""
    moments = request_finite_sum(sums, ScatterStatistic(double))
    covariance = moments[:-2] / moments[-1, 0]
    return _MeanCovariance(moments[-2].copy(), (covariance + covariance.T) / 2)
