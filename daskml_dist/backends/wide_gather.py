"""Steps of many linear models of the same rows: their parameters are columns of one matrix.

The rows of a batch are gathered once for a few dozen columns, whose products, losses, gradients and
updates follow each other while caches hold them. Columns do not know of each other, so threads take
some of them each, through many steps.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.draws import Draw
from daskml_dist.backends.host_gather import parts_of
from daskml_dist.backends.host_update import step_of
from daskml_dist.backends.margins import AT_ROW
from daskml_dist.backends.row_threads import over_threads
from daskml_dist.backends.step import Step
from daskml_dist.backends.vectors import LINE
from daskml_dist.backends.wide_kernels import TOGETHER, gradient_loop, step_loop

__all__ = ["WideGather", "WideSteps", "make"]

#: Steps that are made together at most, and products in them: some 50 ms on one core.
_STEPS, _PRODUCTS = 256, 1 << 30
#: Products of a call that are worth another thread.
_WORTH = 1 << 24

#: Rows of a batch that are gathered at most.
_AT_ONCE = 1 << 13


def make(
    loss: Any,
    shape: tuple[int, int],
    blocks: Mapping[int, tuple[Any, Any, Any | None]],
    n_rows: int,
) -> WideGather | None:
    """A gather, where numba compiles the loss, and blocks are dense; else None."""
    fit = all(
        isinstance(X, np.ndarray)
        and X.dtype == y.dtype
        and all(a is None or a.flags.c_contiguous for a in (X, y, weight))
        for X, y, weight in blocks.values()
    )
    if not fit or type(loss.each).at_row is None or loss.width > 1 or n_rows > _AT_ONCE:
        return None
    return WideGather(loss, shape, blocks, n_rows)


class WideGather:
    """Gather of rows of dense blocks, for many linear models of one output.

    Parameters
    ----------
    loss : WideLoss
        Of all columns, with an `at_row`.
    shape : tuple of two int
        Of the parameters: a row a feature, one of intercepts where there are any, and one of
        losses.
    blocks : mapping of int to (X, y, weight)
        C-contiguous and of one dtype; y has a column of targets, and one of weights a split.
    n_rows : int
        Of a batch at most.
    """

    #: Batches that are gathered together.
    most = 1

    def __init__(
        self, loss: Any, shape: tuple[int, int],
        blocks: Mapping[int, tuple[Any, Any, Any | None]], n_rows: int,
    ) -> None:  # fmt: skip
        self._blocks = dict(blocks)  # whose memory must not be given to others
        self._place = {number: place for place, number in enumerate(blocks)}
        self.where = np.array([[_address(a) for a in part] for part in blocks.values()], np.int64)
        X, y, _ = next(iter(blocks.values()))
        self.n_features = int(X.shape[1])
        self.dtype: np.dtype[Any] = np.dtype(X.dtype)
        self.n_splits = int(y.shape[1]) - 1
        self.has_intercept = shape[0] > self.n_features + 1
        self._stops: NDArray[np.int64] = np.array(loss.stops, np.int64)
        self.parameters = tuple(map(float, loss.parameters))
        self._n_rows = -(-n_rows // TOGETHER) * TOGETHER
        self.products = n_rows * (self.n_features + 1) * shape[1]
        #: Steps that can be made together.
        self.most_steps = int(min(_STEPS, max(1, _PRODUCTS // max(self.products, 1))))
        at_row = AT_ROW.get(loss.each.kernel, type(loss.each).at_row)
        self.gradient = gradient_loop(at_row)

    def __call__(self, batches: Sequence[Draw]) -> list[Callable[[Any, Any], float]]:
        """Gather batches: for each, :meth:`add_gradient` of its rows."""
        return [partial(self.add_gradient, batch) for batch in batches]

    def parts(self, batches: Sequence[Draw]) -> NDArray[np.int64]:
        """Addresses of the runs of rows of batches; good as long as the batches are there."""
        return parts_of(self._place, batches)

    def add_gradient(self, batch: Draw, w: NDArray[Any], out: NDArray[Any]) -> float:
        """Add the gradients of a batch's summed losses to `out`; the loss of a column, meanly."""
        parts, n_rows = self.parts([batch]), self.n_features + self.has_intercept
        found = np.zeros(w.shape[1])

        def some(lines: slice) -> None:
            at = self.columns(lines, w.shape[1])
            own, grad, losses, room = self.scratch(w, at)
            self.gradient(
                self.where, parts, 0, own, grad, losses, room, self.stops(at), self.parameters,
                self.n_features,
            )  # fmt: skip
            n = at.stop - at.start
            out[:n_rows, at] += grad[:n_rows, :n]
            out[-1, at] -= losses[:n]
            found[at] = losses[:n]

        over_threads(some, self.n_lines(w.shape[1]), self.worth(w.shape[1]))
        return float(_mean_losses(found))

    def recorder(self, optimizer: Any, step: Step) -> WideSteps | None:
        """Many steps in one call, where numba compiles the optimizer's."""
        own = type(optimizer.each).__module__.partition(".")[0] == __name__.partition(".")[0]
        alike = all(a.dtype == self.dtype for a in step.state(optimizer))
        return WideSteps(self, optimizer, step) if own and alike else None

    # -- columns of a thread -------------------------------------------------------------------

    def n_lines(self, n_columns: int) -> int:
        """Vectors that hold so many columns."""
        return -(-n_columns * int(self.dtype.itemsize) // LINE)

    def worth(self, n_columns: int, n_steps: int = 1) -> int:
        """Vectors of columns that are worth a thread."""
        return max(1, _WORTH * self.n_lines(n_columns) // max(self.products * n_steps, 1))

    def columns(self, lines: slice, n_columns: int) -> slice:
        """Columns of some vectors."""
        size = LINE // self.dtype.itemsize
        return slice(lines.start * size, min(lines.stop * size, n_columns))

    def stops(self, at: slice) -> NDArray[np.int64]:
        """Ends of the columns of each split, among some columns."""
        stops: NDArray[np.int64] = np.clip(self._stops - at.start, 0, at.stop - at.start)
        return stops

    def padded(self, w: NDArray[Any], at: slice) -> NDArray[Any]:
        """Some columns of rows of the parameters, in whole vectors."""
        size, n = LINE // self.dtype.itemsize, at.stop - at.start
        own = np.zeros((self._width, -(-n // size) * size), self.dtype)
        used = self.n_features + self.has_intercept
        own[:used, :n] = w[:used, at]
        return own

    def scratch(self, w: NDArray[Any], at: slice) -> tuple[Any, Any, Any, Any]:
        """Some columns of the parameters, and room for their gradients, losses and a batch."""
        own = self.padded(w, at)
        rows = np.zeros((self._n_rows, self._width), self.dtype)
        if self.has_intercept:
            rows[:, self.n_features] = 1
        n = self._n_rows
        room = (
            rows, np.zeros(n, self.dtype), np.zeros((n, self.n_splits), self.dtype),
            np.zeros((n, own.shape[1]), self.dtype),
        )  # fmt: skip
        return own, np.zeros_like(own), np.zeros(own.shape[1], self.dtype), room

    @property
    def _width(self) -> int:
        """Features, an intercept, and zeros behind them."""
        return -(-(self.n_features + self.has_intercept) // TOGETHER) * TOGETHER


class WideSteps:
    """Steps of many columns along the batches of one gather, many in one call.

    Parameters
    ----------
    gather : WideGather
    optimizer : StackedOptimizer
    step : Step
        One of the steps, without a gradient.
    """

    def __init__(self, gather: WideGather, optimizer: Any, step: Step) -> None:
        self._gather, self._optimizer = gather, optimizer
        #: Steps that can be made together.
        self.most = gather.most_steps
        self._state = step.state(optimizer)
        l1 = float(optimizer.l1.max()) if step.l1 else 0.0
        self._loop = step_loop(gather.gradient, step_of(optimizer.each, l1, 1.0))

    def serves(self, step: Step) -> bool:
        """Say if a step is of the same arrays: those of a replica change when it is restored."""
        pairs = zip(self._state, step.state(self._optimizer), strict=True)
        return all(one is other for one, other in pairs)

    def __call__(self, batches: Sequence[Draw], steps: Sequence[Step]) -> NDArray[np.float64]:
        """Make steps."""
        gather, optimizer = self._gather, self._optimizer
        w, used = self._state[0], gather.n_features + gather.has_intercept
        n_columns, dtype = w.shape[1], gather.dtype
        counts = np.array([step.rows for step in steps], np.float64)
        rates = optimizer.rates_of([step.lr for step in steps]).astype(dtype)
        numbers = np.array([optimizer.each.coefficients(step.number) for step in steps], dtype)
        numbers = numbers.reshape(len(steps), -1)
        parts, found = gather.parts(batches), np.zeros((len(steps), n_columns))

        def some(lines: slice) -> None:
            at = gather.columns(lines, n_columns)
            n = at.stop - at.start
            own, grad, losses, room = gather.scratch(w, at)
            opt_state = [gather.padded(array, at) for array in self._state[1:]]
            penalties = [_behind(a[at].astype(dtype), own.shape[1]) for a in
                         (optimizer.l1, optimizer.l2)]  # fmt: skip
            own_rates = np.ones((len(steps), own.shape[1]), dtype)
            own_rates[:, :n] = rates[:, at]
            totals = np.zeros((len(steps), own.shape[1]))
            state = tuple(array.reshape(-1) for array in (own, *opt_state))
            self._loop(
                gather.where, parts, counts, own_rates, numbers, *penalties, state, own, grad,
                losses, totals, room, gather.stops(at), gather.parameters, gather.n_features, used,
            )  # fmt: skip
            for whole, part in zip(self._state, (own, *opt_state), strict=True):
                whole[:used, at] = part[:used, :n]
            found[:, at] = totals[:, :n]
            w[-1, at] += totals[:, :n].sum(axis=0).astype(dtype)

        over_threads(some, gather.n_lines(n_columns), gather.worth(n_columns, len(steps)))
        losses: NDArray[np.float64] = _mean_losses(found)
        return losses


def _mean_losses(losses: NDArray[Any]) -> Any:
    """Means over columns; those that went to infinity or NaN do not hide the others."""
    finite = np.isfinite(losses)
    sums = np.where(finite, losses, 0.0).sum(axis=-1)
    return sums / np.maximum(finite.sum(axis=-1), 1)


def _behind(numbers: NDArray[Any], n: int) -> NDArray[Any]:
    """Numbers with zeros behind them."""
    out = np.zeros(n, numbers.dtype)
    out[: len(numbers)] = numbers
    return out


def _address(array: Any) -> int:
    assert array is None or array.flags.c_contiguous
    return 0 if array is None else int(array.__array_interface__["data"][0])
