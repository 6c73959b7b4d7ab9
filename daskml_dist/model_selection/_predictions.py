"""Predictions of an estimator by cross-validation."""

from __future__ import annotations

from typing import Any

from sklearn import model_selection

from daskml_dist.data.lazy import is_dask
from daskml_dist.model_selection._roles import TRAIN
from daskml_dist.model_selection._routing import weighed_scores
from daskml_dist.model_selection._split_rows import chosen
from daskml_dist.model_selection._validation import Splits, fitted_on

__all__ = ["cross_val_predict"]


def cross_val_predict(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    groups: Any = None,
    cv: Any = None,
    n_jobs: int | None = None,
    verbose: int = 0,
    params: dict[str, Any] | None = None,
    pre_dispatch: Any = "2*n_jobs",
    method: str = "predict",
) -> Any:
    """Predict each row by the estimator that was fitted without its fold.

    Parameters
    ----------
    estimator, X, y, groups, cv, n_jobs, verbose, params, pre_dispatch
        As in :func:`cross_validate`. Every row is in the test rows of one split.
    method : str, default="predict"
        Of the estimator.

    Returns
    -------
    ndarray, or lazy dask Array where an input is a Dask collection
        Of shape (n_rows,) or (n_rows, n_outputs).

    Raises
    ------
    InvalidParameterError
        Splits are no partition of the rows.
    """
    fit_params = dict(params or {})
    if not any(map(is_dask, (X, y, groups, *fit_params.values()))):
        return model_selection.cross_val_predict(
            estimator, X, y, groups=groups, cv=cv, n_jobs=n_jobs, verbose=verbose, params=params,
            pre_dispatch=pre_dispatch, method=method,
        )  # fmt: skip
    weighed_scores(estimator, {}, fit_params, False)
    splits = Splits(estimator, X, y, groups, fit_params, cv)
    predicted = []
    for split in range(splits.n_splits):
        rows, targets, more = splits.side(split, TRAIN)
        fitted = fitted_on(estimator, rows, targets, more)
        predicted.append(getattr(fitted, method)(splits.rows.inputs[0]))
    return chosen(splits.rows, predicted)
