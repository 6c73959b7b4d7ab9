"""Scores of many linear models of the same rows, in one pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.backends.namespace import cast, namespace, one_hot, ones, total, zeros
from daskml_dist.models.base import BatchRows
from daskml_dist.models.stacked import StackedLinear
from daskml_dist.solvers.base import Array, Statistic
from daskml_dist.solvers.stacked_gradient import (
    Some,
    takes_kernel,
    tiles_of_splits,
)

__all__ = ["SCORES", "SUMS", "Looks", "StackedScores"]

#: Numbers a column: weight of the rows; of a classifier right ones and losses (and pairs of
#: labels), of a regressor squared and absolute errors, targets, and their squares.
_CLASSIFIER, _REGRESSOR = 3, 5
#: Log loss of the least probability.
_MOST_LOSS = -float(np.log(np.finfo(np.float64).eps))


class Looks(NamedTuple):
    """Parts of scores beside sums.

    Parameters
    ----------
    pairs : bool
        Weights of each pair of a true and a predicted label.
    ranks : bool
        Ranking scores.
    places : bool
        Weights of rows by the place of their label among the scores of several.
    """

    pairs: bool = False
    ranks: bool = False
    places: bool = False


#: None of them.
SUMS = Looks()


@dataclass(frozen=True, eq=False)
class StackedScores(Statistic):
    """Sums of columns over rows that play a role in their split.

    Parameters
    ----------
    w : ndarray of shape (n_columns, n_rows, width)
    splits : ndarray of int of shape (n_columns,), ascending
    role : {TRAIN, TEST}
    pairs : bool, default=False
        Whether the weights of each pair of true and predicted label are summed as well.
    places : bool, default=False
        Whether, of more than two labels, the weights of rows by the place of their label are
        summed as well: 0 for the best score.
    """

    w: Array
    splits: NDArray[np.int64]
    role: int
    pairs: bool = False
    places: bool = False
    in_parts: ClassVar[bool] = True

    def shape(self, model: StackedLinear) -> tuple[int, ...]:
        n_classes = 0 if model.classes is None else len(model.classes)
        more = (n_classes**2 if self.pairs else 0) + (n_classes if self._of_places(model) else 0)
        return len(self.w), _CLASSIFIER + more if n_classes else _REGRESSOR

    def add(self, model: StackedLinear, rows: BatchRows, out: Any, backend: Backend) -> Any:
        kernel = takes_kernel(model.each, rows)
        tiles = tiles_of_splits(model, self.w, self.splits, self.role, rows, backend, kernel)
        for part, some in tiles:
            if kernel:
                out[some.at] += self._by_kernel(model, part, some)
                continue
            raw = model.each.raw_prediction(some.w, part.X, backend)
            raw = namespace(raw).reshape(raw, (part.y.shape[0], len(some.at), some.width))
            sums = self._by_arrays(model, raw, part, some, backend)
            if len(some.at) == out.shape[0]:
                out += sums
            else:
                out[some.at, :] += sums
        return float("nan")

    def _by_kernel(self, model: StackedLinear, rows: BatchRows, some: Some) -> Any:
        from daskml_dist.backends.stack_kernels import log_scores

        (w, bias), (y, roles) = some.coefficients(model.each), model.parted(rows.y)
        mask = cast(roles == self.role, y.dtype)
        if rows.weight is not None:
            mask *= rows.weight[:, None]
        sums = np.zeros((5, len(bias)))
        log_scores(
            rows.X, np.ascontiguousarray(y), mask, some.stops(roles.shape[1]), w, bias,
            _MOST_LOSS, sums,
        )  # fmt: skip
        losses, *weights, right_down, right_up = sums
        down, up = weights
        pairs = [right_down, down - right_down, up - right_up, right_up]
        found = [down + up, right_down + right_up, losses, *(pairs if self.pairs else [])]
        return np.stack(found, axis=1)

    def _by_arrays(
        self, model: StackedLinear, raw: Any, rows: BatchRows, some: Some, backend: Backend
    ) -> Any:
        xp, (y, roles) = namespace(rows.y), model.parted(rows.y)
        mask = xp.take(roles == self.role, backend.to_device(some.splits), axis=1)
        weight = cast(mask, xp.float64)
        if rows.weight is not None:
            weight = weight * cast(rows.weight, xp.float64)[:, None]
        predicted = None
        if model.classes is not None:
            each, predicted = self._of_labels(model, raw, y)
        else:
            each = self._of_numbers(model, raw, y)
        sums = xp.stack([total(xp.where(mask, v, 0.0) * weight, axis=0) for v in each], axis=1)
        if predicted is not None and self._of_places(model):
            sums = xp.concat([sums, _places(model, raw, y, weight)], axis=1)
        if predicted is None or not self.pairs:
            return sums
        return xp.concat([sums, _pairs(model, predicted, y, weight)], axis=1)

    def _of_places(self, model: StackedLinear) -> bool:
        return self.places and model.classes is not None and len(model.classes) > 2

    def _of_labels(self, model: StackedLinear, raw: Any, y: Any) -> tuple[list[Any], Any]:
        """Values to be summed, and predicted numbers of labels."""
        xp, loss, (n, n_columns, width) = namespace(raw), model.each.loss, raw.shape
        each_row = ones((n, n_columns), xp.float64, raw)
        losses = zeros((n, n_columns), xp.float64, raw)
        predicted = xp.argmax(raw, axis=2) if width > 1 else cast(raw[:, :, 0] > 0, xp.int64)
        right = predicted == model.label_codes(y)[:, None]
        if not model.each.n_classes:  # a regression to signs of labels, whose loss is no score
            return [
                each_row,
                cast(right, xp.float64),
                zeros(right.shape, xp.float64, raw),
            ], predicted
        if width > 1:
            each = xp.reshape(raw, (n * n_columns, width))
            targets = model.each.targets(cast(xp.repeat(y, n_columns), xp.int32), raw.dtype)
        else:
            each, targets = xp.reshape(raw, (n * n_columns,)), xp.repeat(y, n_columns)
        losses = xp.reshape(loss.value(targets, cast(each, xp.float64)), right.shape)
        losses = xp.where(losses < _MOST_LOSS, losses, _MOST_LOSS)
        return [each_row, cast(right, xp.float64), losses], predicted

    def _of_numbers(self, model: StackedLinear, raw: Any, y: Any) -> list[Any]:
        xp = namespace(raw)
        y = cast(y, xp.float64)[:, None]
        wide = ones(raw.shape[:2], xp.float64, raw)
        residual = y - cast(model.each.loss.inverse_link(raw[:, :, 0]), xp.float64)
        return [wide, residual**2, xp.abs(residual), y * wide, y**2 * wide]


def _pairs(model: StackedLinear, predicted: Any, y: Any, weight: Any) -> Any:
    """Weights of each true label's predicted ones; (n_columns, n_classes ** 2)."""
    assert model.classes is not None
    xp, k, (n, n_columns) = namespace(weight), len(model.classes), weight.shape
    labels = model.label_codes(y)
    guesses = one_hot(xp.reshape(predicted, (-1,)), k, xp.float64)
    guesses = xp.reshape(guesses, (n, n_columns, k)) * weight[:, :, None]
    counts = xp.matmul(one_hot(labels, k, xp.float64).T, xp.reshape(guesses, (n, -1)))
    counts = xp.permute_dims(xp.reshape(counts, (k, n_columns, k)), (1, 0, 2))
    return xp.reshape(counts, (n_columns, -1))


def _places(model: StackedLinear, raw: Any, y: Any, weight: Any) -> Any:
    """Weights of the rows whose label has each place, best first; (n_columns, n_classes).

    Of equal scores the later label's is the better one, as scikit-learn has it.
    """
    xp, k = namespace(weight), raw.shape[2]
    labels, own = model.label_codes(y)[:, None], raw[:, :, 0]
    for j in range(1, k):
        own = xp.where(labels == j, raw[:, :, j], own)
    place = zeros(own.shape, xp.int64, raw)
    for j in range(k):
        better = (raw[:, :, j] > own) | ((raw[:, :, j] == own) & (labels < j))
        place += cast(better, xp.int64)
    return xp.stack(
        [total(cast(place == j, xp.float64) * weight, axis=0) for j in range(k)], axis=1
    )


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
