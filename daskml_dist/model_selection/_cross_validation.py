"""Scores and predictions of an estimator by cross-validation, and curves of such scores.

Each function is scikit-learn's of rows in memory, but where fits can be batched. Of Dask
collections `Splits` cuts the rows, and fits and scores them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.base import compute
from dask.delayed import delayed
from numpy.typing import NDArray
from sklearn import model_selection
from sklearn.base import clone
from sklearn.utils import check_random_state

from daskml_dist.data.lazy import is_dask
from daskml_dist.diagnostics.works import doing
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.errors.sklearn_errors import translate_errors
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.metrics.scorers import get_scorers
from daskml_dist.model_selection._batched_fits import (
    can_fit_batched,
    fit_batched,
    fit_batched_or_pipelines,
    name_scores,
)
from daskml_dist.model_selection._fold_rows import (
    TEST,
    TRAIN,
    FoldAssignment,
    Ints,
    RowsOfSplits,
    count_rows_of_block,
)
from daskml_dist.model_selection._validation import (
    SplitFit,
    Splits,
    prepare_inputs,
    resolve_score_weights,
    takes_dask_collections,
)


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
    X, y, groups, fit_params = prepare_inputs(X, y, groups, params)
    if not any(map(is_dask, (X, y, groups, *fit_params.values()))):
        found: dict[str, Any] = model_selection.cross_validate(
            estimator, X, y, groups=groups, scoring=scoring, cv=cv, n_jobs=n_jobs,
            verbose=verbose, params=fit_params or None, pre_dispatch=pre_dispatch,
            return_train_score=return_train_score, return_estimator=return_estimator,
            return_indices=return_indices, error_score=error_score,
        )  # fmt: skip
        return found
    scorers = get_scorers(estimator, scoring)
    names, batched = name_scores(scoring), None
    with doing("cross_validate", verbose):
        splits = Splits(estimator, X, y, groups, fit_params, cv)
        weigh = resolve_score_weights(estimator, scorers, fit_params, False)
        # Scores of batched fits count the weights of rows, and the fits have no history.
        if names is not None and not fit_params and not return_estimator:
            batched = fit_batched_or_pipelines(
                [estimator], splits, names, scorers, train_score=return_train_score,
                error_score=error_score,
            )  # fmt: skip
        (fits,) = splits.fits(
            [estimator], scorers, train_score=return_train_score, error_score=error_score,
            weigh_scores=weigh,
        ) if batched is None else batched[0]  # fmt: skip
    result: dict[str, Any] = {
        "fit_time": np.array([fit.fit_time for fit in fits]),
        "score_time": np.array([fit.score_time for fit in fits]),
    }
    if return_estimator:
        result["estimator"] = [fit.estimator for fit in fits]
    if return_indices:
        sides = {"train": TRAIN, "test": TEST}
        result["indices"] = {
            name: [splits.rows.make_mask(i, role) for i in range(splits.n_splits)]
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
    """Return the scores of an estimator on the test rows of each split.

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
    X, y, groups, fit_params = prepare_inputs(X, y, groups, params)
    if not any(map(is_dask, (X, y, groups, *fit_params.values()))):
        return model_selection.cross_val_predict(
            estimator, X, y, groups=groups, cv=cv, n_jobs=n_jobs, verbose=verbose,
            params=fit_params or None, pre_dispatch=pre_dispatch, method=method,
        )  # fmt: skip
    resolve_score_weights(estimator, {}, fit_params, False)
    splits = Splits(estimator, X, y, groups, fit_params, cv)
    (fits,) = splits.fits([estimator], {}, train_score=False, error_score="raise")
    return _predict_out_of_fold(splits.rows, [fit.estimator for fit in fits], method)


# --- predictions of test rows ------------------------------------------------------------------


#: Answer of a fit for a label that it has not met, by the method, as scikit-learn fills it in; None
#: stands for the lowest number of the dtype.
_UNMET_SCORES = {"predict_proba": 0.0, "decision_function": None, "predict_log_proba": None}


def _predict_out_of_fold(rows: RowsOfSplits, fitted: Sequence[Any], method: str) -> da.Array:
    """Return for each row, lazily, the answer of the fit that has not seen it."""
    classes = _find_every_class(fitted, method)
    parts = [part[0] for part in rows.columns.parts]
    if all(map(takes_dask_collections, fitted)):
        lazily = [getattr(one, method)(rows.inputs[0]) for one in fitted]
        meta, counts = lazily[0]._meta, lazily[0].chunks[0]
        tail = lazily[0].shape[1:]
        pieces = [value.to_delayed().reshape(len(parts), -1)[:, 0] for value in lazily]
    else:
        answer = delayed(partial(_predict_block, method), pure=False)
        once = [delayed(one, pure=False) for one in fitted]
        meta = np.asarray(getattr(fitted[0], method)(_find_first_row(parts)))[:0]
        counts, tail = rows.columns.row_counts or [np.nan] * len(parts), meta.shape[1:]
        pieces = [[answer(one, part) for part in parts] for one in once]
    tail = tail if classes is None else (len(classes),)
    wide = [None if classes is None else np.searchsorted(classes, f.classes_) for f in fitted]
    unmet = _UNMET_SCORES.get(method)
    choose = delayed(partial(_choose_out_of_fold, rows.roles, wide, tail, unmet), pure=False)
    chosen = [
        da.from_delayed(choose(codes, *found), (n, *tail), meta=meta)
        for codes, n, *found in zip(rows.code_parts, counts, *pieces, strict=True)
    ]
    of_tests: da.Array = da.concatenate(chosen)
    return of_tests


def _find_every_class(fitted: Sequence[Any], method: str) -> NDArray[Any] | None:
    """Return the labels that any fit has met; None where all have met the same, or have none."""
    known: list[Any] = [getattr(one, "classes_", None) for one in fitted]
    if method not in _UNMET_SCORES or not all(isinstance(some, np.ndarray) for some in known):
        return None
    if all(np.array_equal(some, known[0]) for some in known):
        return None
    classes: NDArray[Any] = np.unique(np.concatenate(known))
    if method == "decision_function" and min(map(len, known)) <= 2:
        raise InvalidDataError(
            f"A fit has met two labels of {len(classes)}, and its decision function says nothing "
            "of the others. Split rows by StratifiedKFold, or ask for method='predict_proba'."
        )
    warnings.warn(
        f"Number of classes in training fold does not match total number of classes "
        f"({len(classes)}): a fit says nothing of a label that it has not met. "
        "To fix this, use a cross-validation technique resulting in properly stratified folds.",
        RuntimeWarning,
        stacklevel=user_stack_level(),
    )
    return classes


def _find_first_row(parts: Sequence[Any]) -> Any:
    """Return a row of the first block that has any."""
    take = delayed(_take_head, pure=False)
    for part in parts:
        row = take(part).compute()
        if count_rows_of_block(row):
            return row
    raise InvalidDataError("X holds no rows. Give at least one.")


def _take_head(rows: Any) -> Any:
    return rows.iloc[:1] if hasattr(rows, "iloc") else rows[:1]


def _predict_block(method: str, fitted: Any, rows: Any) -> Any:
    """Return the answers for the rows of a block; None for no rows, which scikit-learn refuses."""
    return np.asarray(getattr(fitted, method)(rows)) if count_rows_of_block(rows) else None


def _choose_out_of_fold(
    roles: FoldAssignment,
    wide: list[Ints | None],
    tail: tuple[int, ...],
    unmet: float | None,
    codes: Ints,
    *predicted: Any,
) -> NDArray[Any]:
    """Return for each row of a block the answer of its fit, with a column for every class."""
    tests = np.array([roles.played(codes, split) == TEST for split in range(roles.n_splits)])
    if not (tests.sum(axis=0) == 1).all():
        raise InvalidParameterError(
            "cross_val_predict only works for partitions: every row must be in the test rows of "
            "one split. Use KFold, StratifiedKFold or GroupKFold."
        )
    kinds = [found.dtype for found in predicted if found is not None]
    out = np.empty((len(codes), *tail), np.result_type(*kinds) if kinds else float)
    if wide[0] is not None:
        out[:] = np.finfo(out.dtype).min if unmet is None else unmet
    for test, found, columns in zip(tests, predicted, wide, strict=True):
        if found is not None and test.any():
            at = np.flatnonzero(test)
            out[at if columns is None else np.ix_(at, columns)] = found[at]
    return out


# --- curves ------------------------------------------------------------------------------------


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
    """Return training and test scores for values of a parameter: one fit, where it can be batched.

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
    X, y, groups, fit_params = prepare_inputs(X, y, groups, params)
    if isinstance(param_range, str) or not isinstance(param_range, Iterable):
        raise InvalidParameterError(
            f"param_range={param_range!r}: give a sequence of the values of {param_name}."
        )
    candidates = [clone(estimator).set_params(**{param_name: value}) for value in param_range]
    if not candidates:
        raise InvalidParameterError("param_range is empty. Name at least one value.")
    if _is_for_sklearn(candidates[:1], scoring, fit_params, X, y, groups):
        found: tuple[Any, Any] = model_selection.validation_curve(
            estimator, X, y, param_name=param_name, param_range=param_range, groups=groups, cv=cv,
            scoring=scoring, n_jobs=n_jobs, pre_dispatch=pre_dispatch, verbose=verbose,
            error_score=error_score, params=fit_params or None,
        )  # fmt: skip
        return found
    splits = Splits(estimator, X, y, groups, fit_params, cv)
    fits = _fit_and_score_both(candidates, splits, scoring, fit_params, error_score)
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
    """Return training and test scores for sizes of the training rows: one fit, where it can be.

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
    X, y, groups, fit_params = prepare_inputs(X, y, groups, params)
    lazy = any(map(is_dask, (X, y, groups, *fit_params.values())))
    if exploit_incremental_learning and lazy:
        raise InvalidParameterError(
            "exploit_incremental_learning=True is for rows in memory. Leave it out: sizes of a "
            "linear model are one fit, and others are fitted one by one."
        )
    if exploit_incremental_learning or _is_for_sklearn(
        [estimator], scoring, fit_params, X, y, groups
    ):
        found: tuple[Any, ...] = model_selection.learning_curve(
            estimator, X, y, groups=groups, train_sizes=train_sizes, cv=cv, scoring=scoring,
            exploit_incremental_learning=exploit_incremental_learning, n_jobs=n_jobs,
            pre_dispatch=pre_dispatch, verbose=verbose, shuffle=shuffle,
            random_state=random_state, error_score=error_score, return_times=return_times,
            params=fit_params or None,
        )  # fmt: skip
        return found
    folds = _list_fold_rows(Splits(estimator, X, y, groups, fit_params, cv))
    sizes = _resolve_train_sizes(np.asarray(train_sizes), len(folds[0][0]))
    if shuffle:
        rng = check_random_state(random_state)
        folds = [(rng.permutation(train), test) for train, test in folds]
    sized = [(train[:size], test) for train, test in folds for size in sizes]
    splits = Splits(estimator, X, y, None, fit_params, sized)
    (fits,) = _fit_and_score_both([estimator], splits, scoring, fit_params, error_score)

    def shape_by_size(values: list[float]) -> NDArray[np.float64]:
        return np.array(values).reshape(-1, len(sizes)).T

    scores = [
        shape_by_size([getattr(fit, side)["score"] for fit in fits]) for side in ("train", "test")
    ]
    if return_times:
        scores += [
            shape_by_size([getattr(f, name) for f in fits]) for name in ("fit_time", "score_time")
        ]
    return sizes, *scores


def _is_for_sklearn(
    estimators: Sequence[Any], scoring: Any, params: Mapping[str, Any], *given: Any
) -> bool:
    """Return whether rows are in memory, and fits cannot be batched."""
    if any(map(is_dask, (*given, *params.values()))):
        return False
    several = isinstance(scoring, list | tuple | set | dict)
    return several or bool(params) or not can_fit_batched(estimators)


def _fit_and_score_both(
    estimators: Sequence[Any], splits: Splits, scoring: Any, params: Mapping[str, Any],
    error_score: Any,
) -> list[list[SplitFit]]:  # fmt: skip
    """Return fits with scores of both sides, of batched fits where these are possible.

    Scores of batched fits count the weights of rows, which here, as in scikit-learn, scores do not.
    """
    if scoring is not None and not isinstance(scoring, str) and not callable(scoring):
        raise InvalidParameterError(f"scoring={scoring!r}: one score is asked for. Name one.")
    scorers = get_scorers(estimators[0], scoring)
    weigh = resolve_score_weights(estimators[0], scorers, params, False)
    options = {"train_score": True, "error_score": error_score}
    if not params:
        found = fit_batched(estimators, splits, {"score": scoring}, scorers, **options)
        if found is not None:
            return found[0]
    return splits.fits(estimators, scorers, **options, weigh_scores=weigh)


def _list_fold_rows(splits: Splits) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Return the numbers of the training and test rows of each split."""
    if splits.codes is not None:
        return [(np.asarray(train), np.asarray(test)) for train, test in splits.indices]
    codes = np.concatenate(compute(*splits.rows.code_parts))
    found = []
    for split in range(splits.n_splits):
        played = splits.roles.played(codes, split)
        found.append((np.flatnonzero(played == TRAIN), np.flatnonzero(played == TEST)))
    return found


def _resolve_train_sizes(given: NDArray[Any], most: int) -> NDArray[np.int64]:
    """Return the numbers of training rows that shares or numbers stand for, each once."""
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
