"""Curves of scores: over sizes of the training rows, and over values of a parameter."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from dask.base import compute
from numpy.typing import NDArray
from sklearn import model_selection
from sklearn.base import clone
from sklearn.utils import check_random_state

from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.errors.sklearn_errors import translate_errors
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.metrics.scorers import get_scorers
from daskml_dist.model_selection._roles import TEST, TRAIN
from daskml_dist.model_selection._routing import weighed_scores
from daskml_dist.model_selection._stacking import stacked_fits, stacks
from daskml_dist.model_selection._validation import Fitted, Splits, beside

__all__ = ["learning_curve", "validation_curve"]

_DEFAULT_SIZES = np.linspace(0.1, 1.0, 5)


@translate_errors()
@suggest_arguments
def validation_curve(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    param_name: str,
    param_range: Any,
    groups: Any = None,
    cv: Any = None,
    scoring: Any = None,
    n_jobs: int | None = None,
    pre_dispatch: Any = "all",
    verbose: int = 0,
    error_score: Any = np.nan,
    params: dict[str, Any] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Training and test scores for values of a parameter: one fit, where they stack.

    Parameters
    ----------
    estimator : estimator
    X, y, groups : dask Array or DataFrame, or in memory, of shape (n_rows, ...)
        `y` may name a column of X.
    param_name : str
    param_range : sequence of shape (n_values,)
    cv, scoring, params, error_score
        As in :func:`cross_val_score`.
    n_jobs, pre_dispatch, verbose
        scikit-learn's, for rows in memory.

    Returns
    -------
    train_scores, test_scores : ndarray of float64 of shape (n_values, n_splits)

    Raises
    ------
    InvalidParameterError, InvalidDataError

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.model_selection import validation_curve
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> train, test = validation_curve(
    ...     LogisticRegression(), X, y, param_name='C', param_range=[0.1, 10.0], cv=3
    ... )
    >>> test.shape
    (2, 3)
    """
    X, y, groups, fit_params = beside(X, y, groups, params)
    if isinstance(param_range, str) or not isinstance(param_range, Iterable):
        raise InvalidParameterError(
            f"param_range={param_range!r}: give a sequence of the values of {param_name}."
        )
    candidates = [clone(estimator).set_params(**{param_name: value}) for value in param_range]
    if not candidates:
        raise InvalidParameterError("param_range is empty. Name at least one value.")
    if _is_sklearns(candidates[:1], scoring, fit_params, X, y, groups):
        found: tuple[Any, Any] = model_selection.validation_curve(
            estimator, X, y, param_name=param_name, param_range=param_range, groups=groups, cv=cv,
            scoring=scoring, n_jobs=n_jobs, pre_dispatch=pre_dispatch, verbose=verbose,
            error_score=error_score, params=fit_params or None,
        )  # fmt: skip
        return found
    splits = Splits(estimator, X, y, groups, fit_params, cv)
    fits = _fits(candidates, splits, scoring, fit_params, error_score)
    train, test = (
        np.array([[getattr(fit, side)["score"] for fit in row] for row in fits])
        for side in ("train", "test")
    )
    return train, test


@translate_errors()
@suggest_arguments
def learning_curve(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    groups: Any = None,
    train_sizes: Any = _DEFAULT_SIZES,
    cv: Any = None,
    scoring: Any = None,
    exploit_incremental_learning: bool = False,
    n_jobs: int | None = None,
    pre_dispatch: Any = "all",
    verbose: int = 0,
    shuffle: bool = False,
    random_state: Any = None,
    error_score: Any = np.nan,
    return_times: bool = False,
    params: dict[str, Any] | None = None,
) -> tuple[NDArray[Any], ...]:
    """Training and test scores for sizes of the training rows: one fit, where they stack.

    Parameters
    ----------
    estimator : estimator
    X, y, groups : dask Array or DataFrame, or in memory, of shape (n_rows, ...)
        `y` may name a column of X. Of Dask collections an integer a row comes to the client.
    train_sizes : sequence of float or int
        Shares of the first split's training rows, or their numbers.
    cv, scoring, params, error_score
        As in :func:`cross_val_score`.
    exploit_incremental_learning : bool, default=False
        Train on from size to size by ``partial_fit``; of rows in memory alone.
    shuffle : bool, default=False
        Draw the training rows of each size, instead of the first ones.
    random_state : int, RandomState or None
    return_times : bool, default=False
    n_jobs, pre_dispatch, verbose
        scikit-learn's, for rows in memory.

    Returns
    -------
    train_sizes : ndarray of int of shape (n_sizes,)
    train_scores, test_scores : ndarray of float64 of shape (n_sizes, n_splits)
    fit_times, score_times : ndarray of float64 of shape (n_sizes, n_splits)
        With `return_times`.

    Raises
    ------
    InvalidParameterError, InvalidDataError

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.model_selection import learning_curve
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> clf = LogisticRegression()
    >>> sizes, train, test = learning_curve(clf, X, y, cv=3, train_sizes=[0.5, 1.0])
    >>> sizes.tolist(), test.shape
    ([20, 40], (2, 3))
    """
    X, y, groups, fit_params = beside(X, y, groups, params)
    lazy = any(map(is_dask, (X, y, groups, *fit_params.values())))
    if exploit_incremental_learning and lazy:
        raise InvalidParameterError(
            "exploit_incremental_learning=True is for rows in memory. Leave it out: sizes of a "
            "linear model are one fit, and others are fitted one by one."
        )
    if exploit_incremental_learning or _is_sklearns([estimator], scoring, fit_params, X, y, groups):
        found: tuple[Any, ...] = model_selection.learning_curve(
            estimator, X, y, groups=groups, train_sizes=train_sizes, cv=cv, scoring=scoring,
            exploit_incremental_learning=exploit_incremental_learning, n_jobs=n_jobs,
            pre_dispatch=pre_dispatch, verbose=verbose, shuffle=shuffle,
            random_state=random_state, error_score=error_score, return_times=return_times,
            params=fit_params or None,
        )  # fmt: skip
        return found
    folds = _rows_of_folds(Splits(estimator, X, y, groups, fit_params, cv))
    sizes = _sizes(np.asarray(train_sizes), len(folds[0][0]))
    if shuffle:
        rng = check_random_state(random_state)
        folds = [(rng.permutation(train), test) for train, test in folds]
    sized = [(train[:size], test) for train, test in folds for size in sizes]
    splits = Splits(estimator, X, y, None, fit_params, sized)
    (fits,) = _fits([estimator], splits, scoring, fit_params, error_score)

    def of_sizes(values: list[float]) -> NDArray[np.float64]:
        return np.array(values).reshape(-1, len(sizes)).T

    scores = [of_sizes([getattr(fit, side)["score"] for fit in fits]) for side in ("train", "test")]
    if return_times:
        scores += [
            of_sizes([getattr(f, name) for f in fits]) for name in ("fit_time", "score_time")
        ]
    return sizes, *scores


def _is_sklearns(
    estimators: Sequence[Any], scoring: Any, params: Mapping[str, Any], *given: Any
) -> bool:
    """Return whether rows are in memory, and fits no stack of ours."""
    if any(map(is_dask, (*given, *params.values()))):
        return False
    several = isinstance(scoring, list | tuple | set | dict)
    return several or bool(params) or not stacks(estimators)


def _fits(
    estimators: Sequence[Any], splits: Splits, scoring: Any, params: Mapping[str, Any],
    error_score: Any,
) -> list[list[Fitted]]:  # fmt: skip
    """Fits with scores of both sides: a stack, where they are one.

    Scores of a stack count the weights of rows, which here, as in scikit-learn, scores do not.
    """
    if scoring is not None and not isinstance(scoring, str) and not callable(scoring):
        raise InvalidParameterError(f"scoring={scoring!r}: one score is asked for. Name one.")
    scorers = get_scorers(estimators[0], scoring)
    weigh = weighed_scores(estimators[0], scorers, params, False)
    options = {"train_score": True, "error_score": error_score}
    if not params:
        found = stacked_fits(estimators, splits, {"score": scoring}, scorers, **options)
        if found is not None:
            return found[0]
    return splits.fits(estimators, scorers, **options, weigh_scores=weigh)


def _rows_of_folds(splits: Splits) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Numbers of the training and test rows of each split."""
    if splits.codes is not None:
        return [(np.asarray(train), np.asarray(test)) for train, test in splits._splits]
    codes = np.concatenate(compute(*splits.rows.code_parts))
    found = []
    for split in range(splits.n_splits):
        played = splits.roles.played(codes, split)
        found.append((np.flatnonzero(played == TRAIN), np.flatnonzero(played == TEST)))
    return found


def _sizes(given: NDArray[Any], most: int) -> NDArray[np.int64]:
    """Numbers of training rows, each once."""
    if given.ndim != 1 or not len(given) or given.dtype.kind not in "iuf":
        raise InvalidParameterError(
            f"train_sizes={given.tolist()}: give a sequence of shares or numbers of training rows."
        )
    if given.dtype.kind == "f":
        if not (given.min() > 0 and given.max() <= 1):
            raise InvalidParameterError(
                f"train_sizes={given.tolist()}: shares of the training rows must be within (0, 1]."
            )
        given = np.clip((given * most).astype(np.int64), 1, most)
    elif given.min() <= 0 or given.max() > most:
        raise InvalidParameterError(
            f"train_sizes={given.tolist()}: numbers of training rows must be within (0, {most}]."
        )
    sizes = np.unique(given.astype(np.int64))
    if len(sizes) < len(given):
        warnings.warn(
            f"Removed duplicate entries from 'train_sizes': {len(sizes)} are left of {len(given)}.",
            RuntimeWarning,
            stacklevel=user_stack_level(),
        )
    return sizes
