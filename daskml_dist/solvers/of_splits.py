"""Sums over the training rows of each split, of which a row is read once for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.backends.namespace import cast, is_host, namespace, one_hot, total
from daskml_dist.models.base import BatchRows
from daskml_dist.models.stacked import TRAIN, StackedLinear
from daskml_dist.solvers.base import Array, Statistic
from daskml_dist.solvers.rows import is_sparse

__all__ = [
    "CodeWeights",
    "LabelWeights",
    "OfSplits",
    "rows_of_split",
    "train_weights",
    "weighed_rows",
]

#: Splits whose training rows are told apart by the bits of a number.
_MOST_BITS = 62
#: Bytes of float64 rows that are copied at once.
_COPIED = 1 << 21


@dataclass(frozen=True, eq=False)
class OfSplits(Statistic):
    """Another statistic over the training rows of some splits.

    Parameters
    ----------
    each : Statistic
    splits : tuple of int
    """

    each: Statistic
    splits: tuple[int, ...]

    @property
    def additive(self) -> bool:  # type: ignore[override]
        """As of the other."""
        return self.each.additive

    @property
    def shows_not_finite(self) -> bool:
        """As of the other."""
        return self.each.shows_not_finite

    def shape(self, model: StackedLinear) -> tuple[int, ...]:
        return len(self.splits), *self.each.shape(model.each)

    def merge(self, total: Array, part: Array) -> None:
        for of_split, more in zip(total, part, strict=True):
            self.each.merge(of_split, more)

    def add(self, model: StackedLinear, rows: BatchRows, out: Any, backend: Backend) -> Any:
        xp, (y, roles) = namespace(rows.y), model.parted(rows.y)
        y = cast(y, xp.int32 if model.each.n_classes > 2 else rows.y.dtype)
        y = np.ascontiguousarray(y) if is_host(y) else y
        every = BatchRows(rows.X, y, rows.weight, rows.key, rows.block, rows.first)
        plain = model.class_weight is None and not model.roles.counted
        shared = self.additive and is_host(y) and plain
        if shared and self._add_alike(model, every, roles, out, backend):
            return float("nan")
        for k, some in enumerate(weighed_rows(model, rows, np.array(self.splits), backend)):
            self.each.add(model.each, some, out[k, ...], backend)
        return float("nan")

    def _add_alike(
        self, model: StackedLinear, rows: BatchRows, roles: Any, out: Any, backend: Backend
    ) -> bool:
        """Add rows that the same splits train on once, for all of these.

        Of folds, each row is read once, whatever their number. False: there are so many kinds of
        rows that nothing is gained.
        """
        if len(self.splits) >= _MOST_BITS:
            return False
        trained = roles[:, list(self.splits)] == TRAIN
        kinds = trained @ (1 << np.arange(len(self.splits)))
        there = [(kind, np.flatnonzero(kinds == kind)) for kind in np.unique(kinds) if kind]
        if len(there) > len(self.splits) + 1 or (
            is_sparse(rows.X) and not all(map(_are_neighbours, (at for _, at in there)))
        ):
            return False
        for kind, at in there:
            sums = np.zeros(out.shape[1:])
            for some in _alike(rows, at, backend):
                self.each.add(model.each, some, sums, backend)
            for k in range(len(self.splits)):
                if kind >> k & 1:
                    out[k] += sums
        return True


def _are_neighbours(at: NDArray[np.intp]) -> bool:
    return len(at) == int(at[-1]) - int(at[0]) + 1


def _alike(rows: BatchRows, at: NDArray[np.intp], backend: Backend) -> Iterator[BatchRows]:
    """Some of the rows: neighbours as they lie, others copied, a tile at a time."""
    if _are_neighbours(at):
        yield rows.part(slice(int(at[0]), int(at[-1]) + 1), backend)
        return
    step = max(1, _COPIED // (8 * max(1, rows.X.shape[1])))
    for start in range(0, len(at), step):
        some = at[start : start + step]
        weight = None if rows.weight is None else rows.weight[some]
        X = backend.rows(rows.X, some)
        yield BatchRows(X, rows.y[some], weight, (*rows.key, start), rows.block)


def rows_of_split(
    model: StackedLinear, rows: BatchRows, split: int, role: int, backend: Backend
) -> Iterator[BatchRows]:
    """The rows that play a role in a split; where they cannot be told apart, the others weigh 0."""
    _, roles = model.parted(rows.y)
    playing = roles[:, split] == role
    if is_host(roles):
        at = np.flatnonzero(playing)
        if not len(at):
            return
        if not is_sparse(rows.X) or _are_neighbours(at):
            yield from _alike(rows, at, backend)
            return
    weight = cast(playing, roles.dtype)
    if rows.weight is not None:
        weight = weight * cast(rows.weight, roles.dtype)
    yield BatchRows(rows.X, rows.y, weight, rows.key, rows.block, rows.first)


def train_weights(
    model: StackedLinear, rows: BatchRows, splits: NDArray[np.int64], dtype: Any, backend: Backend
) -> Any:
    """Weights of rows in some splits, of shape (n, n_some): zero where a split does not train."""
    y, roles = model.parted(rows.y)
    xp = namespace(roles)
    every = np.array_equal(splits, np.arange(roles.shape[1]))
    some = roles if every else xp.take(roles, backend.to_device(splits), axis=1)
    found = cast(model.times(some, TRAIN), dtype)
    if rows.weight is not None:
        found = found * cast(rows.weight, dtype)[:, None]
    if model.class_weight is not None:
        of_class = cast(backend.to_device(model.class_weight.T[:, splits]), dtype)
        found = found * xp.take(of_class, model.label_codes(y), axis=0)
    return found


def weighed_rows(
    model: StackedLinear, rows: BatchRows, splits: NDArray[np.int64], backend: Backend
) -> list[BatchRows]:
    """Rows as each model reads them, with their weights in each of some splits."""
    xp, (y, _) = namespace(rows.y), model.parted(rows.y)
    y = cast(y, xp.int32 if model.each.n_classes > 2 else rows.y.dtype)
    weights = train_weights(model, rows, splits, rows.y.dtype, backend).T
    if is_host(y):  # kernels read neighbours
        y, weights = np.ascontiguousarray(y), np.ascontiguousarray(weights)
    return [
        BatchRows(rows.X, y, weights[k, :], rows.key, rows.block, rows.first)
        for k in range(len(splits))
    ]


@dataclass(frozen=True, eq=False)
class CodeWeights(Statistic):
    """Weight of the training rows of each split."""

    def shape(self, model: StackedLinear) -> tuple[int, ...]:
        return (model.roles.n_splits,)

    def add(self, model: StackedLinear, rows: BatchRows, out: Any, backend: Backend) -> Any:
        splits, float64 = np.arange(model.roles.n_splits), namespace(rows.y).float64
        out += total(train_weights(model, rows, splits, float64, backend), axis=0)
        return float("nan")


@dataclass(frozen=True, eq=False)
class LabelWeights(Statistic):
    """Weight of the training rows of each split, by their labels."""

    def shape(self, model: StackedLinear) -> tuple[int, ...]:
        assert model.classes is not None
        return model.roles.n_splits, len(model.classes)

    def add(self, model: StackedLinear, rows: BatchRows, out: Any, backend: Backend) -> Any:
        splits, float64 = np.arange(model.roles.n_splits), namespace(rows.y).float64
        weights = train_weights(model, rows, splits, float64, backend)
        code = model.label_codes(model.parted(rows.y)[0])
        out += weights.T @ one_hot(code, out.shape[1], float64)
        return float("nan")
