"""Gradients and Hessians of many columns, each over the training rows of its split."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.backends.namespace import cast, is_host, namespace, total, zeros
from daskml_dist.models.base import BatchRows
from daskml_dist.models.linear import LinearModel
from daskml_dist.models.stacked import TRAIN, StackedLinear
from daskml_dist.solvers.base import Array, Statistic
from daskml_dist.solvers.newton import LossHessian
from daskml_dist.solvers.of_splits import train_weights, weighed_rows
from daskml_dist.solvers.rows import row_tiles, to_rows

__all__ = [
    "Some",
    "StackedGradient",
    "StackedHessian",
    "in_order_of_splits",
    "takes_kernel",
    "tiles_of_splits",
]

#: Raw predictions of a tile of rows that a processor's cache holds.
_ENTRIES = 1 << 16
#: Rows of a tile at least, so that products are worth their calls; and of one that a kernel takes,
#: which makes tiles of its own: so many that Python's part is small beside it.
_LEAST, _OF_KERNEL = 64, 1 << 12
#: Columns that are scored together at most, so that caches hold them.
_MOST_TOGETHER = 1024
#: Neighbouring rows of a share of all.
_RUN = 512


class Some:
    """Columns of the splits that some rows play a role in.

    Parameters
    ----------
    w : ndarray of shape (n_columns, n_rows, width)
        Parameters of all columns.
    splits : ndarray of int of shape (n_columns,), ascending
    at : ndarray of int
        The columns.
    X : rows
        Where, and in which dtype, the maths is done.
    backend : Backend

    Attributes
    ----------
    splits : ndarray of int
    w : array of shape (n_rows, n_some * width)
    sums : dict of str to array
        Whatever is added up.
    """

    def __init__(
        self, w: Array, splits: NDArray[np.int64], at: NDArray[np.intp], X: Any, backend: Backend
    ) -> None:
        self.at, self.splits, self.width = at, splits[at], w.shape[2]
        flat = np.ascontiguousarray(w[at].transpose(1, 0, 2).reshape(w.shape[1], -1))
        self.w = to_rows(flat, X, backend)
        self.sums: dict[str, Any] = {}

    def stops(self, n_splits: int) -> NDArray[np.int64]:
        """Ends of the columns of each split."""
        return np.searchsorted(self.splits, np.arange(n_splits), side="right")

    def coefficients(self, model: LinearModel) -> tuple[Any, Any]:
        """Coefficients of shape (n_features, n_some), and intercepts, of which kernels know."""
        if model.fit_intercept:
            return self.w[:-1], self.w[-1]
        return self.w, np.zeros(self.w.shape[1], self.w.dtype)


def takes_kernel(model: LinearModel, rows: BatchRows) -> bool:
    """Whether the compiled kernels of log losses take rows."""
    X = rows.X
    if not isinstance(X, np.ndarray) or model.width > 1:
        return False
    is_log_loss = model.linear.dense_kernel == "log_loss"
    return is_log_loss and X.flags.c_contiguous and X.dtype == rows.y.dtype


def tiles_of_splits(
    model: StackedLinear, w: Array, splits: NDArray[np.int64], role: int, rows: BatchRows,
    backend: Backend, in_kernel: bool,
) -> Iterator[tuple[BatchRows, Some]]:  # fmt: skip
    """Some rows at a time, as many as a cache holds raw predictions of, and their columns.

    Rows of a fold lie together where nobody shuffled them: columns that all of them are nothing to
    are left out.
    """
    n_columns, _, width = w.shape
    known: dict[bytes, Some] = {}
    most = _OF_KERNEL if in_kernel else max(_LEAST, _ENTRIES // max(n_columns * width, 1))
    for tile in row_tiles(rows.X, backend, cached=8 * most * max(1, rows.X.shape[1])):
        for start in range(tile.start, tile.stop, most):
            part = rows.part(slice(start, min(start + most, tile.stop)), backend)
            _, roles = model.parted(part.y)
            there = np.ones(roles.shape[1], bool)
            if is_host(roles):
                there = model.times(roles, role).any(axis=0)
            if (key := there.tobytes()) not in known:
                at = np.flatnonzero(there[splits])
                known[key] = Some(w, splits, at, rows.X, backend)
            if len(known[key].at):
                yield part, known[key]


def in_order_of_splits(
    of: Callable[[Array, NDArray[np.int64]], Array], w: Array, splits: NDArray[np.int64]
) -> Array:
    """Results of a function of columns, of which those of a split must be neighbours."""
    order = np.argsort(splits, kind="stable")
    parts = []
    for start in range(0, len(order), _MOST_TOGETHER):
        some = order[start : start + _MOST_TOGETHER]
        parts.append(of(w[some], splits[some]))
    sums = np.concatenate(parts)
    found = np.empty_like(sums)
    found[order] = sums
    return found


@dataclass(frozen=True, eq=False)
class StackedGradient(Statistic):
    """Losses and gradients of columns, each over the training rows of its split.

    Parameters
    ----------
    w : ndarray of shape (n_columns, n_rows, width)
    splits : ndarray of int of shape (n_columns,), ascending
    share : int, default=1
        One run of rows in so many is read, and counts for the others.
    """

    w: Array
    splits: NDArray[np.int64]
    share: int = 1
    in_parts: ClassVar[bool] = True

    def shape(self, model: StackedLinear) -> tuple[int, ...]:
        n_columns, *size = self.w.shape
        return n_columns, 1 + int(np.prod(size))

    def add(self, model: StackedLinear, rows: BatchRows, out: Any, backend: Backend) -> Any:
        if self.share == 1:
            return self._add(model, rows, out, backend)
        of_some = zeros(out.shape, np.float64, out)
        runs, factor = _runs_of_share(rows.X.shape[0], self.share)
        for run in runs:
            self._add(model, rows.part(run, backend), of_some, backend)
        out += of_some * factor
        return float("nan")

    def _add(self, model: StackedLinear, rows: BatchRows, out: Any, backend: Backend) -> Any:
        met: dict[int, Some] = {}
        kernel = takes_kernel(model.each, rows)
        tiles = tiles_of_splits(model, self.w, self.splits, TRAIN, rows, backend, kernel)
        for part, some in tiles:
            if id(some) not in met:
                met[id(some)] = some
                some.sums["losses"] = zeros((len(some.at),), np.float64, out)
                some.sums["gradient"] = zeros(some.w.shape, np.float64, out)
            if kernel:
                self._by_kernel(model, part, some, backend)
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                raw = model.each.raw_prediction(some.w, part.X, backend)
                g = self._derivatives(model, raw, part, some, backend)
                model.each.add_products(part.X, g, some.sums["gradient"], backend)
        xp, (_, n_rows, width) = namespace(out), self.w.shape
        for some in met.values():
            shares = xp.reshape(some.sums["gradient"], (n_rows, len(some.at), width))
            shares = xp.reshape(xp.permute_dims(shares, (1, 0, 2)), (len(some.at), -1))
            found = xp.concat([some.sums["losses"][:, None], shares], axis=1)
            if len(some.at) == out.shape[0]:
                out += found
            else:
                out[some.at] += found
        return float("nan")

    def _by_kernel(
        self, model: StackedLinear, rows: BatchRows, some: Some, backend: Backend
    ) -> None:
        from daskml_dist.backends.stack_kernels import log_gradients

        w, bias = some.coefficients(model.each)
        gradient = np.zeros((len(w) + 1, len(bias)))
        every = np.arange(model.roles.n_splits)
        log_gradients(
            rows.X, np.ascontiguousarray(rows.y[:, 0]),
            train_weights(model, rows, every, rows.X.dtype, backend), some.stops(len(every)),
            w, bias, some.sums["losses"], gradient,
        )  # fmt: skip
        some.sums["gradient"] += gradient[: len(some.w)]

    def _derivatives(
        self, model: StackedLinear, raw: Any, rows: BatchRows, some: Some, backend: Backend
    ) -> Any:
        """Derivatives of the weighted losses; the losses are added up a column."""
        xp, losses = namespace(raw), some.sums["losses"]
        every = np.arange(model.roles.n_splits)
        mask = train_weights(model, rows, every, raw.dtype, backend)
        y, width = rows.y[:, 0], some.width
        n, n_columns = raw.shape[0], len(some.at)
        each = xp.reshape(raw, (n * n_columns, width) if width > 1 else (n * n_columns,))
        targets = model.each.targets(
            cast(xp.repeat(y, n_columns), xp.int32 if model.each.n_classes > 2 else y.dtype),
            raw.dtype,
        )
        values, g = model.each.loss.value_and_gradient(targets, each)
        weight = xp.take(mask, backend.to_device(some.splits), axis=1)
        losses += total(xp.reshape(values, (n, n_columns)) * weight, axis=0, dtype=xp.float64)
        return xp.reshape(xp.reshape(g, (n, n_columns, width)) * weight[:, :, None], raw.shape)


def _runs_of_share(n: int, share: int) -> tuple[list[slice], float]:
    """One run of rows in so many, and what each of their rows counts for."""
    runs = [slice(start, min(start + _RUN, n)) for start in range(0, n, _RUN * share)]
    return runs, n / max(sum(run.stop - run.start for run in runs), 1)


@dataclass(frozen=True, eq=False)
class StackedHessian(Statistic):
    """Hessians of columns over the training rows of their splits, of a share of these.

    Of each as :class:`LossHessian` has it.

    Parameters
    ----------
    w : ndarray of shape (n_columns, n_rows, width)
    splits : ndarray of int of shape (n_columns,)
    share : int
        As of :class:`StackedGradient`.
    """

    w: Array
    splits: NDArray[np.int64]
    share: int
    in_parts: ClassVar[bool] = True

    def shape(self, model: StackedLinear) -> tuple[int, ...]:
        return len(self.w), *LossHessian(self.w[0]).shape(model.each)

    def add(self, model: StackedLinear, rows: BatchRows, out: Any, backend: Backend) -> Any:
        of_some = zeros(out.shape, np.float64, out)
        runs, factor = _runs_of_share(rows.X.shape[0], self.share)
        splits, at = np.unique(self.splits, return_inverse=True)
        questions = [LossHessian(w) for w in self.w]
        for run in runs:
            of_splits = weighed_rows(model, rows.part(run, backend), splits, backend)
            for k, question in enumerate(questions):
                question.add(model.each, of_splits[at[k]], of_some[k, ...], backend)
        out += of_some * factor
        return float("nan")
