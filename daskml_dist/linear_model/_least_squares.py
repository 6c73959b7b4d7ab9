"""Base class of linear models fitted by the Gram matrix, and the check of its memory.

Least squares needs only the moments of the rows (X'X, X'y, y'y and the means): one pass sums them,
and every solver works with them. Their size depends on the number of features, not of rows.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from dask.utils import format_bytes
from numpy.typing import NDArray

from daskml_dist.errors import DivergedError, InvalidDataError
from daskml_dist.estimators.linear.base import LinearRegressor
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.losses.base import Loss
from daskml_dist.losses.residual import SquaredError
from daskml_dist.models.linear import LinearModel
from daskml_dist.solvers.base import Solution
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.plan import make_target_shift

#: Most copies of the Gram matrix in one process: sums of its lanes, sums in transit, and factors.
_MAX_GRAM_COPIES = 8
#: Memory is not checked up to this number of features: all copies of their Gram matrix take 1 GiB.
_FEW_FEATURES = 4096


class BaseLeastSquares(LinearRegressor, BaseRounds):
    """Base class of least squares by the Gram matrix, for one target or several."""

    _multi_output = True
    _keeps_single_column = True
    #: Whether `coef_` has one dimension for a y of one column, as in some classes of scikit-learn.
    _flat_column: ClassVar[bool] = True

    def _loss(self) -> Loss:
        return SquaredError()

    def _model(self, rows: DatasetInfo) -> LinearModel:
        check_memory(rows.summary.n_features)
        return model_of(rows, bool(self._all_params()["fit_intercept"]))

    def _set_n_iter(self, solution: Solution) -> None:
        """Set nothing: these solvers do not iterate."""

    def _set_coef(
        self, w: NDArray[Any], model: LinearModel, classes: NDArray[Any] | None, remedy: str
    ) -> None:
        if not np.isfinite(w).all():
            raise DivergedError(f"The parameters became NaN or infinite. {remedy}")
        self.n_features_in_ = model.n_features
        # scikit-learn's shapes of least squares: the intercept of one target is a number, as is
        # that of a fit without an intercept.
        coef = np.ascontiguousarray(w[: model.n_features].T)
        is_single = model.n_targets is None
        self.coef_ = coef[0] if is_single or (self._flat_column and len(coef) == 1) else coef
        self.intercept_ = (w[-1, 0] if is_single else w[-1].copy()) if model.fit_intercept else 0.0


def model_of(rows: DatasetInfo, fit_intercept: bool) -> LinearModel:
    """Return the model of least squares for the rows of a fit."""
    loss, summary = SquaredError(), rows.summary
    # With shifted targets, sums of products lose no digits to a large mean.
    shift = make_target_shift(loss, fit_intercept, summary)
    return LinearModel(loss, summary.n_features, 0, fit_intercept, summary.n_targets, shift)


def moments_of(rows: DatasetInfo) -> dict[str, Any]:
    """Return the arguments that every solver by the Gram matrix needs from the rows."""
    # Products of sparse rows are summed in float64 for any dtype.
    sparse = rows.summary.any_sparse
    return {
        "eps": float(np.finfo(np.float64 if sparse else rows.summary.dtype).eps),
        "sparse": sparse,
    }


def _count_gram_bytes(n_features: int, n_problems: int) -> int:
    """Return the bytes of the Gram matrices of all problems in one process."""
    return 8 * n_features**2 * _MAX_GRAM_COPIES * n_problems


def gram_fits(n_features: int, n_problems: int = 1) -> bool:
    """Return whether the Gram matrices of `n_problems` problems fit in memory."""
    # Small problems always fit, and need no import of Dask for the check.
    if n_features**2 * n_problems <= _FEW_FEATURES**2:
        return True
    from daskml_dist.dask_internals.cluster import MEMORY_LIMIT

    return _count_gram_bytes(n_features, n_problems) <= int(MEMORY_LIMIT)


def check_memory(n_features: int, n_problems: int = 1) -> None:
    """Raise if the Gram matrices do not fit in memory, before any worker allocates them."""
    if not gram_fits(n_features, n_problems):
        from daskml_dist.dask_internals.cluster import MEMORY_LIMIT

        needed = _count_gram_bytes(n_features, n_problems)
        raise InvalidDataError(
            f"X has {n_features} features: working with their Gram matrix"
            f"{'' if n_problems == 1 else f' for each of {n_problems} splits'} takes about "
            f"{format_bytes(needed)}, and there are {format_bytes(MEMORY_LIMIT)} of memory. "
            "Use SGDRegressor, whose memory grows with the features and not with their square, "
            "or select features first."
        )
