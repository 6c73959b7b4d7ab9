"""Largest singular values of wide rows: a few passes, each a product with few vectors.

References
----------
N. Halko, P. G. Martinsson and J. A. Tropp, "Finding structure with randomness: probabilistic
algorithms for constructing approximate matrix decompositions", SIAM Review 53(2), 2011. C. Musco
and C. Musco, "Randomized block Krylov methods for stronger and faster approximate singular value
decomposition", NIPS 2015.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import linalg
from scipy.sparse.linalg import LinearOperator, eigsh

from daskml_dist.backends import Backend
from daskml_dist.backends.host_products import add_matmul
from daskml_dist.backends.namespace import cast, namespace, ones, total
from daskml_dist.errors import DivergedError
from daskml_dist.models.base import BatchRows
from daskml_dist.solvers.base import Array, Solution, Solver, Statistic, Sums
from daskml_dist.solvers.components import signed
from daskml_dist.solvers.rows import is_sparse, row_tiles, sum_of_squares, to_rows

__all__ = ["GramProducts", "PowerIterations"]

#: Bytes of a piece of a dense block that both products read.
_PIECE = 1 << 21
#: Numbers of the vectors of all passes that are kept at most, to find the best ones among them all.
_KEPT = 1 << 27
#: Least share of the largest vector's length, beside all others, that Cholesky's factor can tell.
_TOLD, _SURE = 1e-6, 1e-2
#: Share of its length that an image keeps beside the blocks before, from which no digits are lost.
_ACROSS = 1e-3
#: Vectors of ARPACK's subspace, of those that are asked for; and its restarts at most.
_LANCZOS, _RESTARTS = 2, 100


@dataclass(frozen=True, eq=False)
class GramProducts(Statistic):
    """Products ``A.T @ (A @ vectors)`` of the rows ``A = X - shift``, and the sum of the rows.

    The last column is the sum of the rows of A, the last row begins with the sum of their squares.
    Neither is there where only products are asked for.

    Parameters
    ----------
    vectors : ndarray of shape (n_features, m)
    shift : ndarray of shape (n_features,) or None
        Taken from each row; sparse rows stay as they are, and what they give is moved.
    squares : bool, default=True
        Whether squares are asked for; else there are zeros.
    bare : bool, default=False
        Whether only products are asked for, of rows without a shift.
    """

    vectors: Array
    shift: Array | None = None
    squares: bool = True
    bare: bool = False
    in_parts: ClassVar[bool] = True

    @property
    def shows_not_finite(self) -> bool:
        """By the products and the sum of the rows."""
        return True

    def shape(self, model: Any) -> tuple[int, ...]:
        more = 0 if self.bare else 1
        return model.n_features + more, self.vectors.shape[1] + more

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        vectors = to_rows(self.vectors, rows.X, backend)
        shift = None if self.shift is None else to_rows(self.shift, rows.X, backend)
        with np.errstate(over="ignore", invalid="ignore"):  # the sums show it
            for at in row_tiles(rows.X, backend, cached=_PIECE):
                self._add(rows.part(at, backend), vectors, shift, out, backend)
        return float("nan")

    def _add(
        self, part: BatchRows, vectors: Any, shift: Any | None, out: Any, backend: Backend
    ) -> None:
        if is_sparse(part.X) and shift is not None:
            self._add_moved(part, vectors, shift, out, backend)
            return
        X = part.X if shift is None else part.X - shift
        if self.bare:
            found = namespace(vectors).reshape(backend.dot(X, vectors), (X.shape[0], -1))
            weight = part.weight
            found = found if weight is None else found * cast(weight, found.dtype)[:, None]
            backend.add_tdot(X, found, out)
            return
        found = _products(X, vectors, part.weight, backend)
        backend.add_tdot(X, found, out[:-1, ...])
        if self.squares:
            out[-1, 0] += sum_of_squares(X, part.weight, backend)

    def _add_moved(
        self, part: BatchRows, vectors: Any, shift: Any, out: Any, backend: Backend
    ) -> None:
        """Add what sparse rows give, and take what the shift does."""
        X, xp, m = part.X, namespace(vectors), vectors.shape[1]
        found = _products(X, xp.concat([vectors, shift[:, None]], axis=1), part.weight, backend)
        of_shift = total(cast(found[:, m], out.dtype))
        weight = found[:, m + 1]
        near = found[:, :m] - weight[:, None] * (shift @ vectors)[None, :]
        near = xp.concat([near, weight[:, None]], axis=1)
        backend.add_tdot(X, near, out[:-1, ...])
        shift, side = cast(shift, out.dtype), total(cast(near, out.dtype), axis=0)
        out[:-1, :] -= shift[:, None] * side[None, :]
        if self.squares:
            squares = sum_of_squares(X, part.weight, backend)
            out[-1, 0] += squares - 2 * of_shift + side[m] * (shift @ shift)


def _products(X: Any, vectors: Any, weight: Any | None, backend: Backend) -> Any:
    """Products of rows with vectors, and 1; weighted."""
    xp = namespace(vectors)
    found = xp.reshape(backend.dot(X, vectors), (X.shape[0], vectors.shape[1]))
    found = xp.concat([found, ones((X.shape[0], 1), found.dtype, like=found)], axis=1)
    return found if weight is None else found * cast(weight, found.dtype)[:, None]


@dataclass(frozen=True, eq=False)
class PowerIterations(Solver):
    """Largest singular values and right singular vectors of all rows.

    Parameters
    ----------
    n_components : int
    n_oversamples : int
        Vectors beside these.
    n_iter : int
        Passes before the last of power iterations; fewer where the vectors of all passes can be
        kept, which tell as much.
    centred : bool
        Whether the rows' mean is taken from them first.
    seed : int
        Of the first vectors.
    lanczos : bool
        Find them by ARPACK, a vector a pass.
    tol : float
        Of ARPACK; 0: to the last digits.
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
        """The mean, the passes, and the last one."""
        steps = self.n_iter + 1
        if self.lanczos:
            steps = _RESTARTS * max(_LANCZOS * self.n_components + 1, 20) + 1
        return steps + 2

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Find them.

        Returns
        -------
        Solution
            With the vectors in rows, by falling eigenvalues of ``A.T @ A`` over the rows' number
            (the "values"); the "mean" of the rows; the "total" of all eigenvalues, and that about
            the mean, the "variance".
        """
        d = model.n_features
        shift = self._mean(d, sums)
        kept = _Kept(self._first_vectors(d))
        if self.lanczos:
            kept = _Kept(self._by_lanczos(sums, kept.last, shift))
        n_passes, most = (0, 1) if self.lanczos else self._course(d)
        for _ in range(n_passes):
            kept.add(self._of_gram(sums, kept.last, shift), most)
            if sums.should_stop:
                break
        return self._solution(sums, kept, shift)

    def _course(self, d: int) -> tuple[int, int]:
        """Passes before the last, and of how many of them vectors are kept."""
        width = min(self.n_components + self.n_oversamples, d)
        n_passes = min(self.n_iter, 2 + self.n_iter // 3)
        if (n_passes + 1) * width * d > _KEPT or (n_passes + 1) * width > d:
            return self.n_iter, 1
        return n_passes, n_passes + 1

    def _mean(self, d: int, sums: Sums) -> Array | None:
        """Mean of the rows, where it is taken from them."""
        if not self.centred:
            return None
        first = GramProducts(np.zeros((d, 0)), squares=False)
        return np.asarray(self._products(sums, first)[:-1, -1] / sums.n_rows)

    def _solution(self, sums: Sums, kept: _Kept, shift: Array | None) -> Solution:
        """The best vectors of a subspace (Rayleigh and Ritz)."""
        k = self.n_components
        found = self._products(sums, GramProducts(kept.last, shift)) / sums.n_rows
        values, vectors = kept.best(found[:-1, :-1], k)
        best = signed(vectors.T)
        squares = float(found[-1, 0])
        own_mean = found[:-1, -1]
        variance = max(0.0, squares - float(own_mean @ own_mean))
        extra = {
            "values": np.maximum(values, 0.0),
            "mean": own_mean if shift is None else shift,
            "total": variance if self.centred else squares,
            "variance": variance,
        }
        return Solution(best, n_iter=self.n_iter, extra=extra)

    def _first_vectors(self, d: int) -> Array:
        width = 1 if self.lanczos else min(self.n_components + self.n_oversamples, d)
        drawn = np.random.default_rng(self.seed).standard_normal((d, width))
        return orthonormal(drawn)[0]

    def _by_lanczos(self, sums: Sums, first: Array, shift: Array | None) -> Array:
        def product(v: Array) -> Array:
            return self._of_gram(sums, v.reshape(-1, 1), shift)[:, 0]

        d = len(first)
        operator = LinearOperator((d, d), matvec=product, dtype=np.float64)
        return np.asarray(
            eigsh(operator, k=self.n_components, v0=first[:, 0], tol=self.tol, maxiter=_RESTARTS)[1]
        )

    def _of_gram(self, sums: Sums, vectors: Array, shift: Array | None) -> Array:
        if shift is None:
            products = GramProducts(vectors, squares=False, bare=True)
            return self._products(sums, products) / sums.n_rows
        products = GramProducts(vectors, shift, squares=False)
        return self._products(sums, products)[:-1, :-1] / sums.n_rows

    @staticmethod
    def _products(sums: Sums, statistic: GramProducts) -> Array:
        found = sums(statistic)
        if not np.isfinite(found).all():
            raise DivergedError(
                "The squares of the rows overflow. Scale the features (StandardScaler), or use "
                "float64."
            )
        return found


class _Kept:
    """Orthonormal vectors of some passes, each block of what the last one became, and its products.

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
        #: Products of the blocks with what each became.
        self._products: list[list[Array]] = []

    def add(self, image: Array, most: int) -> None:
        """Take another block: what the last one became, but for the blocks that are kept.

        `image` is changed.
        """
        if len(self._blocks) == most:
            self._blocks, self._products = [], []
        products = self._taken(image)
        self.last, least = orthonormal(image)
        if self._blocks:
            self._products.append(products)
        if any(least < _ACROSS * np.abs(product).max() for product in products):
            self._taken(self.last)
            self.last, _ = orthonormal(self.last)
        self._blocks.append(self.last)

    def _taken(self, image: Array) -> list[Array]:
        """Products of all blocks with an array, from which each is taken, in place."""
        products = [block.T @ image for block in self._blocks]
        for block, product in zip(self._blocks, products, strict=True):
            add_matmul(block, -product, image)
        return products

    def best(self, image: Array, k: int) -> tuple[Array, Array]:
        """The k largest values, and their vectors, given what the last block became."""
        self._products.append([block.T @ image for block in self._blocks])
        sizes = [block.shape[1] for block in self._blocks]
        ends = np.cumsum([0, *sizes])
        inner = np.zeros((ends[-1], ends[-1]))
        for j, of_block in enumerate(self._products):
            for i, product in enumerate(of_block):
                inner[ends[i] : ends[i + 1], ends[j] : ends[j + 1]] = product
                inner[ends[j] : ends[j + 1], ends[i] : ends[i + 1]] = product.T
        values, turned = linalg.eigh(inner)
        turned = turned[:, ::-1][:, :k]
        vectors = sum(block @ turned[ends[i] : ends[i + 1]] for i, block in enumerate(self._blocks))
        return values[::-1][:k], np.asarray(vectors)


def orthonormal(vectors: Array) -> tuple[Array, float]:
    """Orthonormal vectors of the same space, in columns; and the least of their old lengths.

    The length is of what a vector has beside all before it. By the Cholesky factor of their
    products, twice where digits are lost; else by QR.
    """
    least = np.inf
    for _ in range(2):
        factor, failed = linalg.lapack.dpotrf(vectors.T @ vectors)
        diagonal = np.diagonal(factor)
        if failed or not diagonal.min() > _TOLD * diagonal.max():
            return np.asarray(linalg.qr(vectors, mode="economic")[0]), 0.0
        vectors = vectors @ np.triu(linalg.lapack.dtrtri(factor)[0])
        least = min(least, float(diagonal.min()))
        if diagonal.min() > _SURE * diagonal.max():
            break
    return vectors, least
