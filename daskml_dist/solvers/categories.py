"""Counts of the categories of each feature, by class: how many there are is asked first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.errors import InvalidDataError
from daskml_dist.models.base import BatchRows
from daskml_dist.models.naive_bayes import as_categories
from daskml_dist.solvers.base import Array, Solution, Solver, Statistic, Sums
from daskml_dist.solvers.rows import as_dense, row_tiles

__all__ = ["CategoryCounts", "CategoryPasses", "NumberOfCategories", "merge_categories"]

#: Categories of all features together that a table may have for each class.
_MOST = 10**7


@dataclass(frozen=True)
class NumberOfCategories(Statistic):
    """Largest category of each feature, and 1.

    Parameters
    ----------
    signed : bool
        Whether to let negative numbers through.
    """

    signed: bool = False
    additive: ClassVar[bool] = False
    in_parts: ClassVar[bool] = True

    def shape(self, model: Any) -> tuple[int, ...]:
        return (model.n_features,)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        found = backend.to_numpy(out).copy()
        for at in row_tiles(rows.X, backend, dense=True):
            X = as_categories(_on_host(rows, at, backend), signed=self.signed)
            self.merge(found, X.max(axis=0) + 1.0)
        out[...] = backend.to_device(found)
        return float("nan")

    def merge(self, total: Array, part: Array) -> None:
        """Keep the larger numbers."""
        np.maximum(total, part, out=total)


@dataclass(frozen=True)
class CategoryCounts(Statistic):
    """Weight of the rows of each class, and of those that hold each category of each feature.

    Parameters
    ----------
    sizes : tuple of int
        Categories of each feature.
    """

    sizes: tuple[int, ...]
    in_parts: ClassVar[bool] = True

    def shape(self, model: Any) -> tuple[int, ...]:
        return model.n_classes, 1 + sum(self.sizes)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        found = np.zeros(self.shape(model))
        firsts = np.cumsum([1, *self.sizes[:-1]])
        for at in row_tiles(rows.X, backend, dense=True):
            X = as_categories(_on_host(rows, at, backend), signed=True)
            y = backend.to_numpy(rows.y[at])
            weight = np.ones(len(y)) if rows.weight is None else backend.to_numpy(rows.weight[at])
            np.add.at(found[:, 0], y, weight)
            for j, (first, size) in enumerate(zip(firsts.tolist(), self.sizes, strict=True)):
                known = (X[:, j] >= 0) & (X[:, j] < size)
                at_once = y[known] * size + X[known, j]
                counts = np.bincount(at_once, weight[known], minlength=model.n_classes * size)
                found[:, first : first + size] += counts.reshape(model.n_classes, size)
        out += backend.to_device(found)
        return float("nan")


@dataclass(frozen=True)
class CategoryPasses(Solver):
    """Finds the number of categories of each feature, then counts them.

    Parameters
    ----------
    first : Statistic
        What finds the number of categories.
    at_least : tuple of int
        Categories of each feature at least.
    """

    first: Statistic
    at_least: tuple[int, ...]

    name = "category_passes"

    @property
    def max_passes(self) -> int:
        """Two."""
        return 2

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Return the counts, and the ``"sizes"`` of the features."""
        found = sums(self.first)
        if found.sum() > _MOST:
            raise InvalidDataError(
                f"Column {int(found.argmax())} of X holds {found.max() - 1:.0f}, and a category is "
                "to be a number from 0 on without large gaps. Encode X by OrdinalEncoder."
            )
        sizes = tuple(np.maximum(found.astype(np.int64), self.at_least).tolist())
        return Solution(sums(CategoryCounts(sizes)).copy(), extra={"sizes": sizes})


def merge_categories(parts: list[tuple[tuple[int, ...], Array]]) -> tuple[tuple[int, ...], Array]:
    """Counts of several sums, of which each may know of other categories.

    Parameters
    ----------
    parts : list of (sizes, counts)
        As of `CategoryCounts`.
    """
    sizes = tuple(max(each) for each in zip(*(sizes for sizes, _ in parts), strict=True))
    total = np.zeros((len(parts[0][1]), 1 + sum(sizes)))
    for own, counts in parts:
        total[:, 0] += counts[:, 0]
        at, here = 1, 1
        for size, known in zip(sizes, own, strict=True):
            total[:, at : at + known] += counts[:, here : here + known]
            at, here = at + size, here + known
    return sizes, total


def _on_host(rows: BatchRows, at: slice, backend: Backend) -> NDArray[Any]:
    return backend.to_numpy(as_dense(rows.part(at, backend).X))
