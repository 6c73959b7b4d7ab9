"""Scores of many linear models of the same rows, in one pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.backends.namespace import cast, is_host, namespace, ones, total
from daskml_dist.models.base import BatchRows
from daskml_dist.models.stacked import StackedLinear
from daskml_dist.solvers.base import Array, Statistic
from daskml_dist.solvers.stacked import Some, tiles_of_splits

__all__ = ["SCORES", "StackedScores"]

#: Numbers a column: weight of the rows; of a classifier right ones and losses, of a regressor
#: squared and absolute errors, targets, and their squares.
_CLASSIFIER, _REGRESSOR = 3, 5
#: Log loss of the least probability.
_MOST_LOSS = -float(np.log(np.finfo(np.float64).eps))


@dataclass(frozen=True, eq=False)
class StackedScores(Statistic):
    """Sums of columns over rows that play a role in their split.

    Parameters
    ----------
    w : ndarray of shape (n_columns, n_rows, width)
    splits : ndarray of int of shape (n_columns,), ascending
    role : {TRAIN, TEST}
    """

    w: Array
    splits: NDArray[np.int64]
    role: int
    in_parts: ClassVar[bool] = True

    def shape(self, model: StackedLinear) -> tuple[int, ...]:
        return len(self.w), _CLASSIFIER if model.each.n_classes else _REGRESSOR

    def add(self, model: StackedLinear, rows: BatchRows, out: Any, backend: Backend) -> Any:
        for part, some in tiles_of_splits(model, self.w, self.splits, self.role, rows, backend):
            raw = model.each.raw_prediction(some.w, part.X, backend)
            raw = namespace(raw).reshape(raw, (part.y.shape[0], len(some.at), some.width))
            if is_host(raw) and some.width == 1 and model.each.loss.kernel == "log_loss":
                out[some.at] += self._by_kernel(model, raw[:, :, 0], part, some)
                continue
            for k, sums in enumerate(self._by_arrays(model, raw, part, some, backend)):
                if len(some.at) == out.shape[0]:
                    out[:, k] += sums
                else:
                    out[some.at, k] += sums
        return float("nan")

    def _by_kernel(self, model: StackedLinear, raw: Any, rows: BatchRows, some: Some) -> Any:
        from daskml_dist.backends.stack_kernels import log_scores

        weight = 1.0 if rows.weight is None else rows.weight[:, None]
        mask = (rows.y[:, 1:] == self.role) * weight
        sums = np.zeros((_CLASSIFIER, len(some.at)))
        log_scores(raw, rows.y[:, 0], mask, some.stops(model.roles.n_splits), _MOST_LOSS, sums)
        return sums.T

    def _by_arrays(
        self, model: StackedLinear, raw: Any, rows: BatchRows, some: Some, backend: Backend
    ) -> list[Any]:
        xp = namespace(rows.y)
        mask = xp.take(rows.y[:, 1:] == self.role, backend.to_device(some.splits), axis=1)
        weight = cast(mask, xp.float64)
        if rows.weight is not None:
            weight = weight * cast(rows.weight, xp.float64)[:, None]
        each = self._of_labels if model.each.n_classes else self._of_numbers
        return [
            total(xp.where(mask, values, 0.0) * weight, axis=0)
            for values in each(model, raw, rows.y[:, 0])
        ]

    def _of_labels(self, model: StackedLinear, raw: Any, y: Any) -> list[Any]:
        xp, loss, (n, n_columns, width) = namespace(raw), model.each.loss, raw.shape
        each_row = ones((n, n_columns), xp.float64, raw)
        if width > 1:
            right = xp.argmax(raw, axis=2) == cast(y, xp.int64)[:, None]
            each = xp.reshape(raw, (n * n_columns, width))
            targets = model.each.targets(cast(xp.repeat(y, n_columns), xp.int32), raw.dtype)
        else:
            right = (raw[:, :, 0] > 0) == (y > 0)[:, None]
            each, targets = xp.reshape(raw, (n * n_columns,)), xp.repeat(y, n_columns)
        each = cast(each, xp.float64)
        losses = xp.reshape(loss.value(targets, each), right.shape)
        return [
            each_row,
            cast(right, xp.float64),
            xp.where(losses < _MOST_LOSS, losses, _MOST_LOSS),
        ]

    def _of_numbers(self, model: StackedLinear, raw: Any, y: Any) -> list[Any]:
        xp = namespace(raw)
        y = cast(y, xp.float64)[:, None]
        wide = ones(raw.shape[:2], xp.float64, raw)
        residual = y - cast(model.each.loss.inverse_link(raw[:, :, 0]), xp.float64)
        return [wide, residual**2, xp.abs(residual), y * wide, y**2 * wide]


def _r2(sums: Array) -> Array:
    n, squared, _, first, second = sums.T
    spread = second - first**2 / n
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(spread > 0, 1 - squared / spread, np.nan)


#: Scores by scikit-learn's names, of the sums of columns; of classifiers and of regressors.
SCORES: dict[str, dict[str, Callable[[Array], Array]]] = {
    "classifier": {
        "accuracy": lambda sums: sums[:, 1] / sums[:, 0],
        "neg_log_loss": lambda sums: -sums[:, 2] / sums[:, 0],
    },
    "regressor": {
        "neg_mean_absolute_error": lambda sums: -sums[:, 2] / sums[:, 0],
        "neg_mean_squared_error": lambda sums: -sums[:, 1] / sums[:, 0],
        "neg_root_mean_squared_error": lambda sums: -np.sqrt(sums[:, 1] / sums[:, 0]),
        "r2": _r2,
    },
}
