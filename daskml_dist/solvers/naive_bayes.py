"""Sums over the rows of each class in one pass, and counts of categories, for naive Bayes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend, SparseRows, is_sparse
from daskml_dist.backends.namespace import cast, is_host, namespace, ones, zeros
from daskml_dist.errors import InvalidDataError
from daskml_dist.models.base import BatchRows
from daskml_dist.models.naive_bayes import merge_moments, to_categories
from daskml_dist.solvers.base import Array, Solution, Solver, Statistic, Sums
from daskml_dist.solvers.rows import map_entries, row_tiles, to_dense_float64

#: Most categories of all features together, for each class (80 MB a class).
_MAX_CATEGORIES = 10**7
#: Bytes of float64 rows of a tile (1 MiB), whose moments are merged with those of other tiles.
_TILE_BYTES = 1 << 20
#: Most classes for which sums over all classes cost less than finding the classes of a tile.
_MAX_DIRECT_CLASSES = 64


@dataclass(frozen=True)
class ClassCounts(Statistic):
    """Weight of the rows of each class, and their weighted sum: ``[weight, *sum]``.

    Parameters
    ----------
    threshold : float or None
        Entries above it count as 1 and others as 0; None: X is added unchanged.
    signed : bool
        Whether X may hold negative numbers.
    estimator_name : str
        Name of the estimator, for errors.
    """

    threshold: float | None = None
    signed: bool = True
    estimator_name: str = "naive Bayes"
    in_parts: ClassVar[bool] = True

    def shape(self, model: Any) -> tuple[int, ...]:
        return model.n_classes, 1 + model.n_features

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> None:
        out[:, :1] += _sum_group_weights(rows.y, rows.weight, model.n_classes, backend)
        for tile in row_tiles(rows.X, backend):
            part = rows.part(tile, backend)
            X = part.X
            if not self.signed:
                _check_nonnegative(X, self.estimator_name)
            if self.threshold is not None:
                X = map_entries(lambda entries: entries > self.threshold, X)
            backend.add_rows(X, part.y, part.weight, out[:, 1:])


@dataclass(frozen=True)
class ClassMoments(Statistic):
    """Weight, means and summed squared deviations of the rows of each class.

    A last group has the moments of all rows without their weights, if they have weights (the
    variance smoothing of `GaussianNB` is a share of the unweighted variance); else it stays empty.
    Tiles of rows are summed in two steps (means, then deviations from these) and merged, so that
    digits are lost neither to a large mean nor to a class far from the others.
    """

    additive = False
    in_parts: ClassVar[bool] = True

    def shape(self, model: Any) -> tuple[int, ...]:
        return model.n_classes + 1, 1 + 2 * model.n_features

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> None:
        everything = slice(model.n_classes, model.n_classes + 1)
        stays_sparse = is_sparse(rows.X) and backend.device == "cpu"
        for tile in row_tiles(rows.X, backend, dense=not stays_sparse, cached=_TILE_BYTES):
            part = rows.part(tile, backend)
            # The host's kernels convert rows of any dtype as they read them.
            plain = stays_sparse or (is_host(part.X) and not is_sparse(part.X))
            X, weight = part.X if plain else to_dense_float64(part.X), part.weight
            classes, code = _find_present_classes(part.y, model.n_classes)
            cast_weight = None if weight is None else cast(weight, out.dtype)
            self._merge_row_moments(X, code, cast_weight, out, classes, backend)
            if weight is not None:
                no_code = zeros(code.shape, code.dtype, like=code)
                self._merge_row_moments(X, no_code, None, out, everything, backend)

    def merge(self, total: Array, part: Array) -> None:
        merge_moments(total, part)

    def _merge_row_moments(
        self, X: Any, code: Any, weight: Any, out: Any, groups: Any, backend: Backend
    ) -> None:
        xp, n_features = namespace(out), X.shape[1]
        total = out[groups, ...]
        part = zeros(total.shape, out.dtype, like=out)
        count, mean, squares = part[:, :1], part[:, 1 : 1 + n_features], part[:, 1 + n_features :]
        count += _sum_group_weights(code, weight, total.shape[0], backend)
        backend.add_rows(X, code, weight, mean)
        # Two passes over a tile, which stays in a cache; then Chan's update (`merge_moments`).
        mean /= xp.where(count > 0, count, 1.0)
        backend.add_squares(X, code, weight, mean, squares)
        merge_moments(total, part)
        # A copy if `groups` are indices; with a slice `total` is a view of `out`.
        out[groups, ...] = total


def _sum_group_weights(code: Any, weight: Any | None, n_groups: int, backend: Backend) -> Any:
    """Return the weight of the rows of each group, of shape (n_groups, 1)."""
    unit_rows = ones((code.shape[0], 1), np.float64, like=code)
    counts = zeros((n_groups, 1), np.float64, like=code)
    backend.add_rows(unit_rows, code, weight, counts)
    return counts


def _find_present_classes(y: Any, n_classes: int) -> tuple[Any, Any]:
    """Return the classes that some rows may have, and each row's position among them."""
    if n_classes <= _MAX_DIRECT_CLASSES or not is_host(y):
        return slice(0, n_classes), y
    # A tile has few rows, so it contains few of many classes.
    return np.unique(y, return_inverse=True)


def _check_nonnegative(X: Any, estimator_name: str) -> None:
    stored = X.values if isinstance(X, SparseRows) else X
    if stored.size and namespace(stored).min(stored) < 0:
        raise InvalidDataError(
            f"Negative values in data passed to {estimator_name} (input X), which must hold "
            "counts. Use GaussianNB, or scale the features to [0, 1] (MinMaxScaler)."
        )


@dataclass(frozen=True)
class LargestCategory(Statistic):
    """Largest category of each feature, plus 1.

    Parameters
    ----------
    signed : bool
        Whether to allow negative numbers.
    """

    signed: bool = False
    additive: ClassVar[bool] = False
    in_parts: ClassVar[bool] = True

    def shape(self, model: Any) -> tuple[int, ...]:
        return (model.n_features,)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> None:
        largest = backend.to_numpy(out).copy()
        for tile in row_tiles(rows.X, backend, dense=True):
            X = to_categories(_dense_on_host(rows, tile, backend), signed=self.signed)
            self.merge(largest, X.max(axis=0) + 1.0)
        out[...] = backend.to_device(largest)

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

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> None:
        totals = np.zeros(self.shape(model))
        firsts = np.cumsum([1, *self.sizes[:-1]])
        for tile in row_tiles(rows.X, backend, dense=True):
            X = to_categories(_dense_on_host(rows, tile, backend), signed=True)
            y = backend.to_numpy(rows.y[tile])
            weight = np.ones(len(y)) if rows.weight is None else backend.to_numpy(rows.weight[tile])
            np.add.at(totals[:, 0], y, weight)
            for j, (first, size) in enumerate(zip(firsts.tolist(), self.sizes, strict=True)):
                is_known = (X[:, j] >= 0) & (X[:, j] < size)
                # One index for each pair of a class and a category.
                pairs = y[is_known] * size + X[is_known, j]
                counts = np.bincount(pairs, weight[is_known], minlength=model.n_classes * size)
                totals[:, first : first + size] += counts.reshape(model.n_classes, size)
        out += backend.to_device(totals)


@dataclass(frozen=True)
class CategoryCountSolver(Solver):
    """Solver that finds how many categories each feature has, then counts them.

    Parameters
    ----------
    first : Statistic
        Statistic whose sum is the number of categories of each feature.
    at_least : tuple of int
        Fewest categories of each feature.
    """

    first: Statistic
    at_least: tuple[int, ...]

    name = "category_passes"
    max_passes = 2

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Return the counts; ``extra["sizes"]`` has the number of categories of each feature."""
        n_categories = sums(self.first)
        if n_categories.sum() > _MAX_CATEGORIES:
            raise InvalidDataError(
                f"Column {int(n_categories.argmax())} of X holds {n_categories.max() - 1:.0f}, but "
                "categories must be numbered from 0 without large gaps. Encode X with "
                "OrdinalEncoder."
            )
        sizes = tuple(np.maximum(n_categories.astype(np.int64), self.at_least).tolist())
        return Solution(sums(CategoryCounts(sizes)).copy(), extra={"sizes": sizes})


def merge_category_counts(
    fit_counts: list[tuple[tuple[int, ...], Array]],
) -> tuple[tuple[int, ...], Array]:
    """Return the merged categories and counts of several fits, whose categories may differ."""
    sizes = tuple(max(column) for column in zip(*(sizes for sizes, _ in fit_counts), strict=True))
    total = np.zeros((len(fit_counts[0][1]), 1 + sum(sizes)))
    for part_sizes, counts in fit_counts:
        total[:, 0] += counts[:, 0]
        # Where a feature's categories begin, in the total and in the part.
        target, start = 1, 1
        for size, part_size in zip(sizes, part_sizes, strict=True):
            total[:, target : target + part_size] += counts[:, start : start + part_size]
            target, start = target + size, start + part_size
    return sizes, total


def _dense_on_host(rows: BatchRows, row_slice: slice, backend: Backend) -> NDArray[Any]:
    return backend.to_numpy(to_dense_float64(rows.part(row_slice, backend).X))
