"""Begin of a non-negative factorisation: what all rows tell, and first components.

References
----------
C. Boutsidis and E. Gallopoulos, "SVD based initialization: a head start for nonnegative matrix
factorization", Pattern Recognition 41(4), 2008.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtri

from daskml_dist.backends import Backend
from daskml_dist.backends.namespace import cast, namespace, total
from daskml_dist.errors import DivergedError, InvalidDataError
from daskml_dist.models.base import BatchRows
from daskml_dist.models.nonnegative import check_signs
from daskml_dist.solvers.base import Array, RowState, Solver, Statistic, Sums
from daskml_dist.solvers.components import CovarianceEigen
from daskml_dist.solvers.nested import Unkept
from daskml_dist.solvers.power import PowerIterations
from daskml_dist.solvers.rows import (
    elementwise,
    row_tiles,
    sum_of_rows,
    sum_of_squares,
    to_rows,
)

__all__ = ["Begin", "FirstWeights", "HalfNorms", "NonnegativeSolver", "Totals", "weighted"]

#: Features up to which all products of features are made for singular vectors.
_FEW = 512
#: Smaller numbers of singular vectors count as 0.
_SMALL = 1e-6


def weighted(values: Any, weight: Any | None) -> Any:
    """Rows of numbers, each times its weight."""
    return values if weight is None else values * cast(weight, values.dtype)[:, None]


@dataclass(frozen=True, eq=False)
class Totals(Statistic):
    """Weighted sums of all entries and of their squares, and the number of zeros.

    Parameters
    ----------
    counts : bool, default=False
        Whether zeros are counted.
    signed : bool, default=False
        Whether to let negative numbers through.
    """

    counts: bool = False
    signed: bool = False
    in_parts: ClassVar[bool] = True

    @property
    def shows_not_finite(self) -> bool:
        """By the squares."""
        return True

    def shape(self, model: Any) -> tuple[int, ...]:
        return (3,)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        with np.errstate(over="ignore", invalid="ignore"):  # the sums show it
            for at in row_tiles(rows.X, backend):
                part = rows.part(at, backend)
                if not self.signed:
                    check_signs(part.X)
                out[0] += sum_of_rows(part.X, part.weight, backend)
                out[1] += sum_of_squares(part.X, part.weight, backend)
                if self.counts:
                    above = elementwise(lambda entries: entries > 0, part.X)
                    n_entries = part.X.shape[0] * part.X.shape[1]
                    out[2] += n_entries - sum_of_rows(above, None, backend)
        return float("nan")


@dataclass(frozen=True, eq=False)
class HalfNorms(Statistic):
    """Weighted squares of the positive, and of the negative, products of rows with vectors.

    Parameters
    ----------
    vectors : ndarray of shape (n_features, k)
    """

    vectors: Array
    in_parts: ClassVar[bool] = True

    def shape(self, model: Any) -> tuple[int, ...]:
        return 2, self.vectors.shape[1]

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        vectors = to_rows(self.vectors, rows.X, backend)
        for at in row_tiles(rows.X, backend):
            part = rows.part(at, backend)
            found = cast(backend.dot(part.X, vectors), out.dtype)
            found = namespace(found).reshape(found, (-1, vectors.shape[1]))
            own = weighted(found * found, part.weight)
            positive = cast(found > 0, out.dtype)
            out[0, :] += total(own * positive, axis=0)
            out[1, :] += total(own * (1 - positive), axis=0)
        return float("nan")


@dataclass(frozen=True, eq=False)
class FirstWeights(RowState):
    """Weights of the components in each row, as a factorisation begins with them.

    Parameters
    ----------
    n_components : int
    vectors : ndarray of shape (n_features, k), or None
        Products with these, but for negative ones; of the first vector, their absolute values.
    fill : float
        Takes the place of zeros; all there is without vectors.
    spread : float
        Of zeros and without vectors: times the absolute value of a normal number; 0: not.
    seed : int
        Of these, which belong to the rows' places in their blocks.
    given : bool
        Take the rows' targets.
    """

    n_components: int
    vectors: Array | None = None
    fill: float = 0.0
    spread: float = 0.0
    seed: int = 0
    given: bool = False
    name: ClassVar[str] = "weights"

    def make(self, model: Any, rows: BatchRows, backend: Backend) -> Any:
        """As they begin."""
        n, k = rows.X.shape[0], self.n_components
        if self.given:
            return to_rows(np.ones(1), rows.X, backend) * namespace(rows.y).reshape(rows.y, (n, k))
        rest = np.full((n, k), self.fill)
        if self.spread:
            stream = np.random.PCG64(np.random.SeedSequence((self.seed, rows.block + 1)))
            stream.advance(rows.first * k)  # a number of 64 bits each
            uniform = np.random.Generator(stream).random((n, k))
            rest = self.spread * ndtri((1 + uniform) / 2)
        rest = to_rows(rest, rows.X, backend)
        if self.vectors is None:
            return rest
        xp = namespace(rest)
        found = backend.dot(rows.X, to_rows(self.vectors, rows.X, backend))
        found = xp.reshape(found, (n, k))
        found[:, 0] = xp.abs(found[:, 0])
        return xp.where(found < _SMALL, rest, found)


@dataclass(frozen=True)
class Begin:
    """First components and weights.

    Parameters
    ----------
    n_components : int
    init : str
        As of NMF; "custom": components are the solver's start.
    seed : int
    drawn : ndarray of shape (n_features, n_components) or None
        Normal numbers, of "random".
    scale : float
        The mean weight of a row, of which the engine makes 1.
    """

    n_components: int
    init: str
    seed: int
    drawn: Array | None = None
    scale: float = 1.0

    def max_passes(self, d: int) -> int:
        """Passes over the rows."""
        return 2 + max(1, self._singular(d).max_passes)

    def totals(self, sums: Sums, *, counts: bool = False) -> tuple[float, float]:
        """Sum of all entries; and the number of zeros, where they are counted."""
        entries, squares, none = sums(Totals(counts)).tolist()
        if not np.isfinite(squares):
            raise DivergedError(
                "The squares of the rows overflow. Scale the features (MaxAbsScaler), or use "
                "float64."
            )
        if not entries:
            raise InvalidDataError(
                "X holds nothing but zeros: there is nothing to factor. Look at what made it."
            )
        return entries, none

    def __call__(
        self, model: Any, sums: Sums, start: Array | None, mean: float
    ) -> tuple[Array, FirstWeights]:
        """Components of shape (n_features, k), and what weights begin with.

        Parameters
        ----------
        model : Model
        sums : Sums
        start : ndarray of shape (n_features, k) or None
        mean : float
            Of all entries.
        """
        k = self.n_components
        first = FirstWeights(k, seed=self.seed)
        if self.init == "custom":
            assert start is not None
            return start, replace(first, given=True)
        if self.init == "random":
            assert self.drawn is not None
            scale = float(np.sqrt(mean / k))
            return scale * np.abs(self.drawn), replace(first, spread=scale)
        H, vectors = self._halves(model, sums)
        fill = mean if self.init == "nndsvda" else 0.0
        spread = mean / 100 if self.init == "nndsvdar" else 0.0
        rest = fill if not spread else spread * self._normal(H.shape)
        return np.where(H < _SMALL, rest, H), replace(
            first, vectors=vectors, fill=fill, spread=spread
        )

    def _normal(self, shape: tuple[int, ...]) -> Array:
        return np.abs(np.random.default_rng(self.seed).standard_normal(shape))

    def _singular(self, d: int) -> Solver:
        k = self.n_components
        if d <= _FEW:
            return CovarianceEigen(k, double=True, centred=False)
        return PowerIterations(k, 10, n_iter=3, centred=False, seed=self.seed)

    def _halves(self, model: Any, sums: Sums) -> tuple[Array, Array]:
        """The larger half of each pair of singular vectors, the rows' as a function of rows."""
        k = self.n_components
        found = self._singular(model.n_features).solve(model, Unkept(sums, sums.n_rows), None)
        V, weight = found.w[:k], sums.n_rows * self.scale
        values = np.sqrt(found.extra["values"][:k] * weight)
        with np.errstate(divide="ignore", invalid="ignore"):
            norms = self.scale * sums(HalfNorms(np.ascontiguousarray(V.T)))
            left = np.sqrt(norms) / values
        left[:, ~(values > values[0] * 1e-12)] = 0.0
        halves = np.stack([np.maximum(V, 0), np.maximum(-V, 0)])
        right = np.linalg.norm(halves, axis=2)
        sizes = left * right
        side = (sizes[1] >= sizes[0]).astype(int)
        at = side, np.arange(k)
        size, of_left, of_right = sizes[at], left[at], right[at]
        length = np.sqrt(values * size)
        H = halves[at]
        with np.errstate(divide="ignore", invalid="ignore"):
            H *= np.where(size > 0, length / of_right, 0.0)[:, None]
            scale = np.where(size > 0, length / (of_left * values), 0.0)
        H[0] = np.sqrt(values[0]) * np.abs(V[0])
        scale[0] = 1 / np.sqrt(values[0])
        sign = np.where(side == 1, -1.0, 1.0)
        weights = V * (sign * scale)[:, None]
        return np.ascontiguousarray(H.T), np.ascontiguousarray(weights.T)


@dataclass(frozen=True)
class NonnegativeSolver(Solver):
    """Base class of the solvers that factor non-negative rows.

    Parameters
    ----------
    begin : Begin
    max_iter : int
    tol : float
        Of what tells the solver that it has come to the end.
    l1_rows, l2_rows, l1, l2 : float
        Penalties on the weights of a row, and, for each row, on the components.
    n_features : int
    """

    begin: Begin
    max_iter: int
    tol: float
    l1_rows: float
    l2_rows: float
    l1: float
    l2: float
    n_features: int

    #: Passes beside those of the begin and of the steps.
    _more: ClassVar[int] = 0

    @property
    def max_passes(self) -> int:
        """Those of the begin, of the steps, and what comes on top."""
        return self.begin.max_passes(self.n_features) + self.max_iter + self._more
