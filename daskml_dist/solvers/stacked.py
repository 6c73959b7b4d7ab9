"""Many fits of linear models at once: candidates times splits as columns of one matrix.

Each column's solver runs as if alone, in lock step with the others; gradients that they ask for are
one reading of the rows, and other sums are made once where several columns of a split ask for the
same. E. R. Sparks et al., "Automating model search for large scale machine learning" (TuPAQ), SoCC
2015.
"""

from __future__ import annotations

import pickle
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
from daskml_dist.solvers.base import Array, Solution, Solver, Statistic, Sums
from daskml_dist.solvers.lock_step import Seat, in_lock_step
from daskml_dist.solvers.objective import LossGradient
from daskml_dist.solvers.of_splits import OfSplits, train_weights
from daskml_dist.solvers.rows import row_tiles, to_rows

__all__ = [
    "Column",
    "Some",
    "StackedGradient",
    "StackedSolver",
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


@dataclass(frozen=True, eq=False)
class Column:
    """One of the fits.

    Parameters
    ----------
    split : int
        Whose training rows it is fitted to.
    solver : Solver
    n_rows : float
        Sum of the weights of these rows.
    start : ndarray or None
    """

    split: int
    solver: Solver
    n_rows: float
    start: Array | None = None


@dataclass(frozen=True, eq=False)
class StackedSolver(Solver):
    """Solvers of many columns, in lock step.

    The solution is the columns' parameters, of shape (n_columns, n_rows, width); ``extra`` has
    their solutions without these.

    Parameters
    ----------
    columns : tuple of Column
    share : int, default=1
        With more than 1, columns are solved with one run of rows in so many first, and go on from
        there with all rows: to the same optimum, in fewer readings of these. For solvers that ask
        for gradients alone.
    """

    columns: tuple[Column, ...]
    share: int = 1

    name = "stacked"

    @property
    def max_passes(self) -> int:
        """As many as the columns' together."""
        return sum(column.solver.max_passes for column in self.columns)

    def solve(self, model: StackedLinear, sums: Sums, start: Array | None) -> Solution:
        """Solve every column."""
        starts = [c.start for c in self.columns]
        if self.share > 1:
            some = self._solved(model, sums, starts, self.share)
            starts = [one.w if np.isfinite(one.w).all() else None for one in some]
        found = self._solved(model, sums, starts, 1)
        return Solution(
            np.array([solution.w for solution in found]),
            max(solution.n_iter for solution in found),
            extra={
                "columns": [
                    (solution.n_iter, solution.converged, solution.message, solution.extra)
                    for solution in found
                ]
            },
        )

    def _solved(
        self, model: StackedLinear, sums: Sums, starts: list[Array | None], share: int
    ) -> list[Solution]:
        seats = [
            Seat(model.each, c.solver, start, c.n_rows, lambda: sums.should_stop)
            for c, start in zip(self.columns, starts, strict=True)
        ]
        return in_lock_step(seats, lambda at, asked: self._answers(sums, at, asked, share))

    def _answers(
        self, sums: Sums, at: list[int], questions: list[Statistic], share: int
    ) -> list[Array]:
        answers: dict[int, Array] = {}
        gradients = [i for i, q in zip(at, questions, strict=True) if type(q) is LossGradient]
        asked = dict(zip(at, questions, strict=True))
        if gradients:
            # Columns of a split side by side; at first all of them ask at the same place.
            places: dict[tuple[int, bytes], list[int]] = {}
            for i in sorted(gradients, key=lambda i: self.columns[i].split):
                place = self.columns[i].split, asked[i].w.tobytes()  # type: ignore[attr-defined]
                places.setdefault(place, []).append(i)
            w = np.stack([asked[same[0]].w for same in places.values()])  # type: ignore[attr-defined]
            splits = np.array([split for split, _ in places])
            found = sums(StackedGradient(w, splits, share))
            for same, answer in zip(places.values(), found, strict=True):
                answers.update(dict.fromkeys(same, answer))
        others: dict[bytes, dict[int, list[int]]] = {}
        for i, question in asked.items():
            if i not in answers:
                key = pickle.dumps(question)
                others.setdefault(key, {}).setdefault(self.columns[i].split, []).append(i)
        for of_split in others.values():
            splits_asked = tuple(sorted(of_split))
            question = asked[of_split[splits_asked[0]][0]]
            found = sums(OfSplits(question, splits_asked))
            for split, answer in zip(splits_asked, found, strict=True):
                answers.update(dict.fromkeys(of_split[split], answer))
        return [answers[i] for i in at]


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
    if not isinstance(X, np.ndarray) or model.width > 1 or model.loss.kernel != "log_loss":
        return False
    return X.flags.c_contiguous and X.dtype == rows.y.dtype


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
        n, seen, of_some = rows.X.shape[0], 0, zeros(out.shape, np.float64, out)
        for start in range(0, n, _RUN * self.share):
            stop = min(start + _RUN, n)
            self._add(model, rows.part(slice(start, stop), backend), of_some, backend)
            seen += stop - start
        if seen:
            out += of_some * (n / seen)
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
