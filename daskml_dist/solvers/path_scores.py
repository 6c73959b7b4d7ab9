"""Scores of least-squares fits along paths of penalties, of all splits, in one pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from daskml_dist.backends import Backend
from daskml_dist.backends.namespace import cast, is_host, namespace, total
from daskml_dist.models.base import BatchRows
from daskml_dist.models.stacked import StackedLinear
from daskml_dist.solvers.base import Array, Statistic
from daskml_dist.solvers.of_splits import rows_of_split
from daskml_dist.solvers.rows import row_tiles, to_rows

__all__ = ["TARGET_SCORES", "PathSums", "SignedHits"]

#: Raw predictions that a processor's cache holds, and rows of a tile at least.
_ENTRIES, _LEAST = 1 << 16, 64


@dataclass(frozen=True, eq=False)
class _OfPaths(Statistic):
    """Sums of the fits of each split over its rows of a role.

    Parameters
    ----------
    w : ndarray of shape (n_splits, n_alphas, n_rows, n_targets)
        Of the first splits of the model.
    role : {TRAIN, TEST}
    """

    w: Array
    role: int
    in_parts: ClassVar[bool] = True

    def add(self, model: StackedLinear, rows: BatchRows, out: Any, backend: Backend) -> Any:
        n_alphas, n_rows, n_targets = self.w.shape[1:]
        width = n_alphas * n_targets
        most = max(_LEAST, _ENTRIES // max(width, 1))
        for split, paths in enumerate(self.w):
            w = to_rows(np.moveaxis(paths, 0, 1).reshape(n_rows, width), rows.X, backend)
            for some in rows_of_split(model, rows, split, self.role, backend):
                for at in row_tiles(some.X, backend, cached=8 * most * some.X.shape[1]):
                    part = some.part(at, backend)
                    raw = model.each.raw_prediction(w, part.X, backend)
                    n = part.X.shape[0]
                    raw = namespace(raw).reshape(raw, (n, n_alphas, n_targets))
                    y, _ = model.parted(part.y)
                    y = namespace(y).reshape(y, (n, n_targets))
                    self._add(raw, y, part.weight, out[split, ...])
        return float("nan")

    def _add(self, raw: Any, y: Any, weight: Any | None, out: Any) -> None:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class PathSums(_OfPaths):
    """Of each fit and target: weight, squared and absolute errors, targets, squares, and rows.

    Parameters
    ----------
    absolute : bool
        Whether absolute errors are asked for; else they are zero.
    """

    absolute: bool = False

    def shape(self, model: StackedLinear) -> tuple[int, ...]:
        return *self.w.shape[:2], self.w.shape[3], 6

    def _add(self, raw: Any, y: Any, weight: Any | None, out: Any) -> None:
        xp = namespace(raw)
        y64 = cast(y, xp.float64)
        there = y.shape[0] if weight is None else total(cast(weight != 0, xp.float64))
        out[..., 5] += there
        out[..., 0] += y.shape[0] if weight is None else total(weight, dtype=xp.float64)
        out[..., 3] += _weighed(y64, weight)
        out[..., 4] += _weighed(y64 * y64, weight)
        residual = raw - cast(y, raw.dtype)[:, None, :]
        if self.absolute:
            out[..., 2] += _weighed(xp.abs(residual), weight)
        residual *= residual
        out[..., 1] += _weighed(residual, weight)


@dataclass(frozen=True, eq=False)
class SignedHits(_OfPaths):
    """Weight of the rows, and of those whose label is that of the largest raw prediction.

    Targets are 1 for the label and -1 for others; one column of targets is of the second label of
    two.

    Parameters
    ----------
    several : bool, default=False
        Whether rows have several labels; then the weight of those of which all are told right.
    """

    several: bool = False

    def shape(self, model: StackedLinear) -> tuple[int, ...]:
        return *self.w.shape[:2], 2

    def _add(self, raw: Any, y: Any, weight: Any | None, out: Any) -> None:
        xp = namespace(raw)
        if self.several:
            right = xp.all((raw > 0) == (y > 0)[:, None, :], axis=2)
        elif raw.shape[2] == 1:
            right = (raw[:, :, 0] > 0) == (y > 0)
        else:
            right = xp.argmax(raw, axis=2) == xp.argmax(y, axis=1)[:, None]
        out[..., 0] += y.shape[0] if weight is None else total(weight, dtype=xp.float64)
        out[..., 1] += _weighed(cast(right, xp.float64), weight)


def _weighed(values: Any, weight: Any | None) -> Any:
    """Sum over rows, in float64."""
    xp = namespace(values)
    if weight is not None:
        shape = (values.shape[0],) + (1,) * (values.ndim - 1)
        values = values * xp.reshape(cast(weight, values.dtype), shape)
    if is_host(values) and values.ndim == 3 and values.shape[2] == 1:
        # NumPy sums neighbours along the other axis fast only where there is no third.
        return values[:, :, 0].sum(axis=0, dtype=np.float64)[:, None]
    return total(values, axis=0, dtype=xp.float64)


def _r2(sums: Array) -> Array:
    n, squared, _, first, second, rows = np.moveaxis(sums, -1, 0)
    spread = second - first**2 / n
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.where(spread > 0, 1 - squared / spread, np.where(squared > 0, 0.0, 1.0))
    # One row has no spread, and says nothing.
    return np.asarray(np.where(rows < 2, np.nan, score).mean(axis=-1))


#: Scores by scikit-learn's names, of :class:`PathSums`: the mean of all targets.
TARGET_SCORES: dict[str, Callable[[Array], Array]] = {
    "neg_mean_absolute_error": lambda sums: -(sums[..., 2] / sums[..., 0]).mean(axis=-1),
    "neg_mean_squared_error": lambda sums: -(sums[..., 1] / sums[..., 0]).mean(axis=-1),
    "neg_root_mean_squared_error": lambda sums: -np.sqrt(sums[..., 1] / sums[..., 0]).mean(axis=-1),
    "r2": _r2,
}
