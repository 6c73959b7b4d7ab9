"""Second moments of the rows: all that least squares needs to know of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from daskml_dist.backends import Backend
from daskml_dist.backends.namespace import cast, namespace, ones
from daskml_dist.models.base import BatchRows
from daskml_dist.solvers.base import Array, Statistic
from daskml_dist.solvers.rows import as_dense, row_tiles

__all__ = ["Moments"]

#: Bytes of a piece of a dense block: with its product it stays in the processor's cache.
_PIECE = 2**21
#: Rows of a piece at least, so that adding its product costs little beside making it.
_FEW_ROWS = 2048


@dataclass(frozen=True, eq=False)
class Moments(Statistic):
    """Upper triangle of ``A.T @ A`` for the rows ``A = [X, 1, y - y_shift]``, weighted.

    Dense rows are multiplied in their own dtype at first sight, at the speed of BLAS. A second
    look is in float64, and makes sparse rows dense, a few at a time: `A` then begins with
    ``X - x_shift``, or with ``(X - x_shift) @ transform``.

    Parameters
    ----------
    y_shift : ndarray of float64 of shape (n_targets,)
    x_shift : ndarray of float64 of shape (n_features,), or None
    transform : ndarray of float64 of shape (n_features, n_features), or None
    """

    y_shift: Array
    x_shift: Array | None = None
    transform: Array | None = None
    in_parts: ClassVar[bool] = True

    @property
    def shows_not_finite(self) -> bool:
        """By the squares."""
        return True

    def shape(self, model: Any) -> tuple[int, ...]:
        """One row and column for each feature, for the 1, and for each target."""
        n = model.n_features + 1 + len(self.y_shift)
        return n, n

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Add the moments of some rows, piece by piece."""
        again = self.x_shift is not None
        # At first sight sparse rows add up in float64 whatever their number.
        pieces = row_tiles(rows.X, backend, dense=again, cached=_PIECE, at_least=_FEW_ROWS)
        with np.errstate(over="ignore", invalid="ignore"):  # the solver looks at the sums
            if again:
                for at in pieces:
                    self._add_shifted(rows.part(at, backend), out, backend)
            else:
                self._add(rows, pieces, out, backend)
        return float("nan")

    def _add(self, rows: BatchRows, pieces: Iterable[slice], out: Any, backend: Backend) -> None:
        d, weight, side = rows.X.shape[1], rows.weight, self._side(rows.y, backend)
        weighted = side if weight is None else side * weight[:, None]
        out[d:, d:] += weighted.T @ side
        for at in pieces:
            of_rows = None if weight is None else weight[at]
            X = backend.rows(rows.X, at)
            backend.add_products(X, side[at, ...], of_rows, out[:d, ...])

    def _add_shifted(self, part: BatchRows, out: Any, backend: Backend) -> None:
        assert self.x_shift is not None
        side, weight = self._side(part.y, backend), part.weight
        rows = as_dense(part.X) - backend.to_device(self.x_shift)
        xp = namespace(rows)
        if self.transform is not None:
            rows = rows @ backend.to_device(self.transform)
        rows = xp.concat([rows, side], axis=1)
        if weight is not None:
            rows *= xp.sqrt(cast(weight, rows.dtype))[:, None]
        out += rows.T @ rows

    def _side(self, y: Any, backend: Backend) -> Any:
        """The columns beside X: 1 and the targets."""
        xp = namespace(y)
        targets = xp.reshape(y, (y.shape[0], -1)) - backend.to_device(self.y_shift)
        return xp.concat([ones((y.shape[0], 1), targets.dtype, like=y), targets], axis=1)
