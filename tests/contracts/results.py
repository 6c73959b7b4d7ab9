"""Collection of results: a user's input, and the outputs by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dask
import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.base import clone, is_classifier

from daskml_dist import metrics
from tests.contracts.compare import plain

__all__ = [
    "UserInput",
    "estimator_results",
    "fitted_numbers",
    "metric_results",
    "plainly",
    "transformer_results",
]


@dataclass(frozen=True, eq=False)
class UserInput:
    """A user's input.

    Parameters
    ----------
    X, y, w : object
        Rows, their targets and weights.
    row : object
        Ids of the rows.
    ordered : bool
        Whether the rows have the same order each time that they are computed.
    whole : object
        Object that contains X, y, w and row: keeps it alive.
    """

    X: Any
    y: Any
    w: Any
    row: Any
    ordered: bool = True
    whole: Any = None

    def in_memory(self) -> UserInput:
        """Return the same data in memory, computed together."""
        parts = [self.X, self.y, self.w, self.row]
        # Dask returns objects other than dataframes after dataframes, whatever the argument order.
        for is_frame in (True, False):
            at = [i for i, part in enumerate(parts) if hasattr(part, "expr") is is_frame]
            for i, values in zip(at, dask.compute(*(parts[i] for i in at)), strict=True):
                parts[i] = _joined(values)
        X, y = parts[:2]
        if isinstance(y, str):
            X, parts[1] = X.drop(columns=[y]), X[y]
        return UserInput(X, *parts[1:])


def _joined(values: Any) -> Any:
    """Return the blocks of a list as one."""
    if not isinstance(values, list):
        return values
    return sparse.vstack(values) if sparse.issparse(values[0]) else np.concatenate(values)


def fitted_numbers(model: Any) -> dict[str, Any]:
    """Return the fitted attributes with numbers or strings, except those about the iterations."""
    found = {}
    for name, value in vars(model).items():
        if name.startswith("_") or not name.endswith("_") or name in _OF_THE_WAY:
            continue
        if isinstance(value, np.ndarray | np.generic | float | int | str | list) and not hasattr(
            value, "fit"
        ):
            found[name] = value
    return found


#: Fitted attributes about the iterations, or that only exist for rows in memory.
_OF_THE_WAY = {"n_iter_", "t_", "rank_error_", "outliers_", "dual_gap_", "labels_"}


def _in_order(values: Any, user_input: UserInput) -> Any:
    """Return results of rows in the order of their ids; sorted if rows have no order."""
    [values], [row] = dask.compute(values), dask.compute(user_input.row)
    if isinstance(values, pd.DataFrame | pd.Series):
        values = plain(values.reset_index(drop=True))
    values = values.toarray() if sparse.issparse(values) else np.asarray(values)
    if user_input.ordered:
        return values[np.argsort(np.asarray(_joined(row)), kind="stable")]
    return values


def _score_of_predictions(model: Any, rows: Any, y: Any) -> float:
    """Return the value of a metric of targets and lazy predictions."""
    name = "accuracy_score" if is_classifier(model) else "mean_squared_error"
    return metrics.METRICS[name](y, model.predict(rows))


def estimator_results(model: Any, user_input: UserInput, **params: Any) -> dict[str, Any]:
    """Return fitted attributes, predictions and scores, by name."""
    weights = {} if user_input.w is None else {"sample_weight": user_input.w}
    model = clone(model).set_params(**params).fit(user_input.X, user_input.y, **weights)
    found = fitted_numbers(model)
    rows, y = user_input.X, user_input.y
    if isinstance(y, str):
        rows, y = rows[[name for name in rows.columns if name != y]], rows[y]
    for method in ("predict", "predict_proba", "decision_function"):
        if hasattr(model, method):
            found[f"{method}()"] = _in_order(getattr(model, method)(rows), user_input)
    found["score()"] = model.score(user_input.X, user_input.y, **weights)
    found["metric()"] = _score_of_predictions(model, rows, y)
    return found


def transformer_results(model: Any, user_input: UserInput, **params: Any) -> dict[str, Any]:
    """Return fitted attributes, transformed rows and names of their columns, by name."""
    weights = {} if user_input.w is None else {"sample_weight": user_input.w}
    model = clone(model).set_params(**params).fit(user_input.X, user_input.y, **weights)
    found = fitted_numbers(model)
    found["transform()"] = _in_order(model.transform(user_input.X), user_input)
    if hasattr(model, "get_feature_names_out"):
        found["names"] = list(model.get_feature_names_out())
    return found


def metric_results(metric: Any, user_input: UserInput, **params: Any) -> dict[str, Any]:
    """Return the value, by name."""
    return {"value": metric(user_input.y, user_input.X, sample_weight=user_input.w)}


def plainly(results: Callable[..., dict[str, Any]], thing: Any) -> Callable[[UserInput], Any]:
    """Return the results of scikit-learn's equivalent, for inputs that it accepts."""

    def of(user_input: UserInput) -> dict[str, Any]:
        row, w = np.asarray(user_input.row), None if user_input.w is None else plain(user_input.w)
        w = None if w is None else np.asarray(w, dtype=float)
        X = plain(user_input.X)
        if hasattr(thing, "predict"):
            # On sparse and float32 rows scikit-learn's solvers end further from the optimum; sums
            # of small integers overflow, and its sums of booleans (in a mixture) are booleans.
            X = X.toarray() if sparse.issparse(X) else X
            dtypes = list(X.dtypes) if isinstance(X, pd.DataFrame) else [X.dtype]
            X = X.astype(float) if all(dtype.kind in "biuf" for dtype in dtypes) else X
        return results(thing, UserInput(X, np.asarray(plain(user_input.y)), w, row))

    return of
