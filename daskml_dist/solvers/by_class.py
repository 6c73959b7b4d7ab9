"""Sums over the rows of each class, in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from daskml_dist.backends import Backend
from daskml_dist.backends.numpy_backend import CSRRows
from daskml_dist.errors import InvalidDataError
from daskml_dist.models.naive_bayes import merge_moments
from daskml_dist.solvers.base import Array, Solution, Solver, Statistic, Sums
from daskml_dist.solvers.rows import as_dense, elementwise, row_blocks

__all__ = ["ClassCounts", "ClassMoments", "OnePass"]


@dataclass(frozen=True)
class ClassCounts(Statistic):
    """Weight of the rows of each class, and their weighted sum: ``[weight, *sum]`` a class.

    Parameters
    ----------
    threshold : float or None
        What is larger counts as 1 and all else as 0; None: X is added as it is.
    signed : bool
        Whether X may hold negative numbers.
    """

    threshold: float | None = None
    signed: bool = True

    def shape(self, model: Any) -> tuple[int, ...]:
        return model.n_classes, 1 + model.n_features

    def add(
        self, model: Any, X: Any, y: Any, weight: Any | None, out: Array, backend: Backend
    ) -> float:
        out[:, 0] += np.bincount(y, weight, minlength=model.n_classes)
        for at in row_blocks(X):
            rows = X[at]
            if not self.signed:
                _check_signs(rows)
            if self.threshold is not None:
                rows = elementwise(partial(np.less, self.threshold), rows)
            backend.add_rows(rows, y[at], None if weight is None else weight[at], out[:, 1:])
        return float("nan")


@dataclass(frozen=True)
class ClassMoments(Statistic):
    """Weight, means and summed squared deviations of the rows of each class.

    The last group holds all rows with weight 1, where rows have weights; else it stays empty. Rows
    are taken a few at a time, in two steps (their means, then the deviations from these), and
    merged, so that digits are lost neither to a large mean nor to a class far from the others.
    """

    additive = False

    def shape(self, model: Any) -> tuple[int, ...]:
        return model.n_classes + 1, 1 + 2 * model.n_features

    def add(
        self, model: Any, X: Any, y: Any, weight: Any | None, out: Array, backend: Backend
    ) -> float:
        for at in row_blocks(X, dense=True):
            rows = as_dense(X[at])
            classes, code = np.unique(y[at], return_inverse=True)
            some = None if weight is None else weight[at].astype(np.float64)
            self._merge_rows(rows, code, some, out, classes, backend)
            if weight is not None:
                everything = np.array([model.n_classes])
                self._merge_rows(rows, np.zeros_like(code), None, out, everything, backend)
        return float("nan")

    def merge(self, total: Array, part: Array) -> None:
        merge_moments(total, part)

    def _merge_rows(
        self, rows: Array, code: Any, weight: Any, out: Array, groups: Any, backend: Backend
    ) -> None:
        n_groups, n_features = len(groups), rows.shape[1]
        part = np.zeros((n_groups, 1 + 2 * n_features))
        mean, squares = part[:, 1 : 1 + n_features], part[:, 1 + n_features :]
        part[:, 0] = np.bincount(code, weight, minlength=n_groups)
        backend.add_rows(rows, code, weight, mean)
        mean /= np.where(part[:, :1] > 0, part[:, :1], 1.0)
        apart = rows - mean[code]
        apart *= apart
        backend.add_rows(apart, code, weight, squares)
        total = out[groups]
        merge_moments(total, part)
        out[groups] = total


@dataclass(frozen=True)
class OnePass(Solver):
    """Asks one statistic; the sum is the solution."""

    statistic: Statistic

    name = "one_pass"

    @property
    def max_passes(self) -> int:
        """One."""
        return 1

    def solve(self, model: Any, sums: Sums, start: Array) -> Solution:
        """Return the sum."""
        return Solution(sums(self.statistic))


def _check_signs(X: Any) -> None:
    stored = X.X.data if isinstance(X, CSRRows) else X
    if stored.size and stored.min() < 0:
        raise InvalidDataError(
            "Negative values in data: X must hold counts. Use GaussianNB, or scale the features "
            "to [0, 1] (MinMaxScaler)."
        )
