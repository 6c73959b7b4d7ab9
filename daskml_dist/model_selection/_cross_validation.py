"""Scores and predictions of an estimator by cross-validation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import model_selection

from daskml_dist.data.lazy import is_dask
from daskml_dist.diagnostics.works import doing
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.errors.sklearn_errors import translate_errors
from daskml_dist.metrics.scorers import get_scorers
from daskml_dist.model_selection._out_of_fold import predicted_out_of_fold
from daskml_dist.model_selection._pipelines import fits_of_stacks, score_names
from daskml_dist.model_selection._roles import TEST, TRAIN
from daskml_dist.model_selection._routing import weighed_scores
from daskml_dist.model_selection._validation import Splits, beside

__all__ = ["cross_val_predict", "cross_val_score", "cross_validate"]


@translate_errors()
@suggest_arguments
def cross_validate(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    groups: Any = None,
    scoring: Any = None,
    cv: Any = None,
    n_jobs: int | None = None,
    verbose: int = 0,
    params: dict[str, Any] | None = None,
    pre_dispatch: Any = "2*n_jobs",
    return_train_score: bool = False,
    return_estimator: bool = False,
    return_indices: bool = False,
    error_score: Any = np.nan,
) -> dict[str, Any]:
    """Fit an estimator on the training rows of each split, and score it on the test rows.

    Rows in memory are scikit-learn's affair. Those of Dask collections stay where they lie: a
    code a row tells its fold. Fits of a linear model are columns of one, as in a search (of a
    pipeline's last step: once its transformers are fitted to a split's rows), unless `params` or
    fitted estimators are asked for; each other fit reads the rows of its folds.

    Parameters
    ----------
    estimator : estimator
    X, y, groups : dask Array or DataFrame, or in memory, of shape (n_rows, ...)
        `y` may name a column of X.
    scoring : str, callable, list, tuple or dict of these, or None
        None: the estimator's own ``score``.
    cv : int, splitter, iterable of (train, test) row numbers, or None
        None: 5 folds, stratified for a classifier.
    params : dict, optional
        Arguments of ``fit``; those that have a value a row, as weights (a pipeline's too:
        ``step__sample_weight``), are cut like X.
    return_train_score, return_estimator, return_indices : bool, default=False
        Indices of Dask collections are lazy masks, one bool a row, as of ``split``.
    error_score : "raise" or float, default=nan
        What a failed fit scores.
    n_jobs, verbose, pre_dispatch
        scikit-learn's, for rows in memory.

    Returns
    -------
    dict of str to ndarray of shape (n_splits,)
        ``test_score`` (or ``test_NAME`` of several), ``fit_time``, ``score_time``, and what else
        was asked for.

    Raises
    ------
    InvalidParameterError, InvalidDataError

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.model_selection import cross_validate
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> scores = cross_validate(LogisticRegression(), X, y, cv=3, scoring=['accuracy', 'roc_auc'])
    >>> sorted(scores)
    ['fit_time', 'score_time', 'test_accuracy', 'test_roc_auc']
    """
    X, y, groups, fit_params = beside(X, y, groups, params)
    if not any(map(is_dask, (X, y, groups, *fit_params.values()))):
        found: dict[str, Any] = model_selection.cross_validate(
            estimator, X, y, groups=groups, scoring=scoring, cv=cv, n_jobs=n_jobs,
            verbose=verbose, params=fit_params or None, pre_dispatch=pre_dispatch,
            return_train_score=return_train_score, return_estimator=return_estimator,
            return_indices=return_indices, error_score=error_score,
        )  # fmt: skip
        return found
    scorers = get_scorers(estimator, scoring)
    names, found_by_stacks = score_names(scoring), None
    with doing("cross_validate", verbose):
        splits = Splits(estimator, X, y, groups, fit_params, cv)
        weigh = weighed_scores(estimator, scorers, fit_params, False)
        # Scores of stacks count the weights of rows, and their fits have no history.
        if names is not None and not fit_params and not return_estimator:
            found_by_stacks = fits_of_stacks(
                [estimator], splits, names, scorers, train_score=return_train_score,
                error_score=error_score,
            )  # fmt: skip
        (fits,) = splits.fits(
            [estimator], scorers, train_score=return_train_score, error_score=error_score,
            weigh_scores=weigh,
        ) if found_by_stacks is None else found_by_stacks[0]  # fmt: skip
    result: dict[str, Any] = {
        "fit_time": np.array([fit.fit_time for fit in fits]),
        "score_time": np.array([fit.score_time for fit in fits]),
    }
    if return_estimator:
        result["estimator"] = [fit.estimator for fit in fits]
    if return_indices:
        sides = {"train": TRAIN, "test": TEST}
        result["indices"] = {
            name: [splits.rows.mask(i, role) for i in range(splits.n_splits)]
            for name, role in sides.items()
        }
    for name in scorers:
        result[f"test_{name}"] = np.array([fit.test[name] for fit in fits])
        if return_train_score:
            result[f"train_{name}"] = np.array([fit.train[name] for fit in fits])
    return result


@translate_errors()
@suggest_arguments
def cross_val_score(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    groups: Any = None,
    scoring: Any = None,
    cv: Any = None,
    n_jobs: int | None = None,
    verbose: int = 0,
    params: dict[str, Any] | None = None,
    pre_dispatch: Any = "2*n_jobs",
    error_score: Any = np.nan,
) -> NDArray[np.float64]:
    """Scores of an estimator on the test rows of each split.

    Parameters
    ----------
    estimator, X, y, groups, cv, n_jobs, verbose, params, pre_dispatch, error_score
        As in :func:`cross_validate`.
    scoring : str, callable or None

    Returns
    -------
    ndarray of float64 of shape (n_splits,)

    Raises
    ------
    InvalidParameterError, InvalidDataError

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.model_selection import cross_val_score
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> cross_val_score(LogisticRegression(), X, y, cv=3).shape
    (3,)
    """
    if scoring is not None and not isinstance(scoring, str) and not callable(scoring):
        raise InvalidParameterError(
            f"scoring={scoring!r}: one score is asked for. Use cross_validate for several."
        )
    found = cross_validate(
        estimator, X, y, groups=groups, scoring=scoring, cv=cv, n_jobs=n_jobs, verbose=verbose,
        params=params, pre_dispatch=pre_dispatch, error_score=error_score,
    )  # fmt: skip
    return np.asarray(found["test_score"])


@translate_errors()
@suggest_arguments
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
        Of shape (n_rows,) or (n_rows, n_outputs). Of a label that a fit has not met it says 0, or
        the lowest number, where it is asked for more than a prediction.

    Raises
    ------
    InvalidParameterError
        Splits are no partition of the rows; told when the rows are computed.
    InvalidDataError
        A fit has met two labels of several, and is asked for its decision function.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.model_selection import cross_val_predict
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> cross_val_predict(LogisticRegression(), X, y, cv=3).shape
    (60,)
    """
    X, y, groups, fit_params = beside(X, y, groups, params)
    if not any(map(is_dask, (X, y, groups, *fit_params.values()))):
        return model_selection.cross_val_predict(
            estimator, X, y, groups=groups, cv=cv, n_jobs=n_jobs, verbose=verbose,
            params=fit_params or None, pre_dispatch=pre_dispatch, method=method,
        )  # fmt: skip
    weighed_scores(estimator, {}, fit_params, False)
    splits = Splits(estimator, X, y, groups, fit_params, cv)
    (fits,) = splits.fits([estimator], {}, train_score=False, error_score="raise")
    return predicted_out_of_fold(splits.rows, [fit.estimator for fit in fits], method)
