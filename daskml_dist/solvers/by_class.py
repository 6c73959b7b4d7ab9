"""Sums over the rows of each class, in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from daskml_dist.backends import Backend
from daskml_dist.backends.base import SparseRows
from daskml_dist.backends.namespace import cast, is_host, namespace, ones, zeros
from daskml_dist.errors import InvalidDataError
from daskml_dist.models.base import BatchRows
from daskml_dist.models.naive_bayes import merge_moments
from daskml_dist.solvers.base import Array, Solution, Solver, Statistic, Sums
from daskml_dist.solvers.rows import as_dense, elementwise, is_sparse, row_tiles

__all__ = ["ClassCounts", "ClassMoments", "OnePass"]

#: Bytes of rows, as float64, whose moments are merged with all others' at once.
_CACHED = 1 << 20
#: Classes that cost less than to find those of some rows.
_FEW = 64


@dataclass(frozen=True)
class ClassCounts(Statistic):
    """Weight of the rows of each class, and their weighted sum: ``[weight, *sum]`` a class.

    Parameters
    ----------
    threshold : float or None
        What is larger counts as 1 and all else as 0; None: X is added as it is.
    signed : bool
        Whether X may hold negative numbers.
    of : str
        Estimator that errors name.
    """

    threshold: float | None = None
    signed: bool = True
    of: str = "naive Bayes"
    in_parts: ClassVar[bool] = True

    def shape(self, model: Any) -> tuple[int, ...]:
        return model.n_classes, 1 + model.n_features

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        out[:, :1] += _counts(rows.y, rows.weight, model.n_classes, backend)
        for at in row_tiles(rows.X, backend):
            part = rows.part(at, backend)
            X = part.X
            if not self.signed:
                _check_signs(X, self.of)
            if self.threshold is not None:
                X = elementwise(lambda entries: entries > self.threshold, X)
            backend.add_rows(X, part.y, part.weight, out[:, 1:])
        return float("nan")


@dataclass(frozen=True)
class ClassMoments(Statistic):
    """Weight, means and summed squared deviations of the rows of each class.

    The last group holds all rows with weight 1, where rows have weights; else it stays empty. Rows
    are taken a few at a time, in two steps (their means, then the deviations from these), and
    merged, so that digits are lost neither to a large mean nor to a class far from the others.
    """

    additive = False
    in_parts: ClassVar[bool] = True

    def shape(self, model: Any) -> tuple[int, ...]:
        return model.n_classes + 1, 1 + 2 * model.n_features

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        everything = slice(model.n_classes, model.n_classes + 1)
        for at in row_tiles(rows.X, backend, dense=True, cached=_CACHED):
            part = rows.part(at, backend)
            # The host's kernels read rows of any dtype.
            plain = is_host(part.X) and not is_sparse(part.X)
            X, weight = part.X if plain else as_dense(part.X), part.weight
            classes, code = _present(part.y, model.n_classes)
            some = None if weight is None else cast(weight, out.dtype)
            self._merge_rows(X, code, some, out, classes, backend)
            if weight is not None:
                no_code = zeros(code.shape, code.dtype, like=code)
                self._merge_rows(X, no_code, None, out, everything, backend)
        return float("nan")

    def merge(self, total: Array, part: Array) -> None:
        merge_moments(total, part)

    def _merge_rows(
        self, X: Any, code: Any, weight: Any, out: Any, groups: Any, backend: Backend
    ) -> None:
        xp, n_features = namespace(X), X.shape[1]
        total = out[groups, ...]
        part = zeros(total.shape, out.dtype, like=out)
        count, mean, squares = part[:, :1], part[:, 1 : 1 + n_features], part[:, 1 + n_features :]
        count += _counts(code, weight, total.shape[0], backend)
        backend.add_rows(X, code, weight, mean)
        mean /= xp.where(count > 0, count, 1.0)
        backend.add_squares(X, code, weight, mean, squares)
        merge_moments(total, part)
        out[groups, ...] = total


@dataclass(frozen=True)
class OnePass(Solver):
    """Asks one statistic; the sum is the solution."""

    statistic: Statistic

    name = "one_pass"

    @property
    def max_passes(self) -> int:
        """One."""
        return 1

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Return the sum."""
        return Solution(sums(self.statistic).copy())


def _counts(code: Any, weight: Any | None, n_groups: int, backend: Backend) -> Any:
    """Weight of the rows of each group, of shape (n_groups, 1)."""
    each = ones((code.shape[0], 1), np.float64, like=code)
    counts = zeros((n_groups, 1), np.float64, like=code)
    backend.add_rows(each, code, weight, counts)
    return counts


def _present(y: Any, n_classes: int) -> tuple[Any, Any]:
    """Classes that some rows may have, as an index, and each row's position among them."""
    if n_classes <= _FEW or not is_host(y):
        return slice(0, n_classes), y
    # The host's blocks are small, and hold few of many classes.
    return np.unique(y, return_inverse=True)


def _check_signs(X: Any, of: str) -> None:
    stored = X.values if isinstance(X, SparseRows) else X
    if stored.size and namespace(stored).min(stored) < 0:
        raise InvalidDataError(
            f"Negative values in data passed to {of} (input X), which must hold counts. Use "
            "GaussianNB, or scale the features to [0, 1] (MinMaxScaler)."
        )
