"""Scores and predictions of an estimator by cross-validation, and curves of such scores.

For rows in memory each function calls scikit-learn's of the same name, except that the two curves
use batched fits if possible. For Dask collections `Splits` assigns the rows to splits; fits of
linear models are batched, so that all splits (of a curve: all points, too) are trained in the same
passes over the rows, and other fits are made one by one or as tasks.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn import model_selection
from sklearn.base import clone
from sklearn.utils import check_random_state

from daskml_dist.data.collection import join_lazy_blocks
from daskml_dist.data.computing import compute_together
from daskml_dist.data.lazy import is_dask
from daskml_dist.diagnostics.operation_progress import report_operation
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.errors.sklearn_errors import translate_errors
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.inference.block_mapping import find_first_row
from daskml_dist.metrics.scorers import get_scorers
from daskml_dist.model_selection._batched_fits import (
    can_fit_batched,
    fit_batched,
    fit_batched_or_pipelines,
    name_scores,
)
from daskml_dist.model_selection._fold_rows import RowsOfSplits
from daskml_dist.model_selection._out_of_fold import OutOfFoldPredictor
from daskml_dist.model_selection._validation import (
    SplitFit,
    Splits,
    prepare_inputs,
    resolve_score_weights,
    takes_dask_collections,
)
from daskml_dist.models.batched import TEST, TRAIN


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

    Rows in memory are left to scikit-learn. Rows of Dask collections are not moved; a code for each
    row gives its fold. All splits of a linear model are fitted in one batched fit, as in a search
    (for a pipeline, its last step, once the transformers are fitted to a split's rows), unless
    `params` are given or fitted estimators are requested; other fits read the rows of their folds.

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
        Arguments of ``fit``; those with a value for each row, such as weights (of a pipeline's step
        too: ``step__sample_weight``), are split like X.
    return_train_score, return_estimator, return_indices : bool, default=False
        Indices of Dask collections are lazy masks of bool, as a splitter's ``split`` gives them.
    error_score : "raise" or float, default=nan
        Score of a failed fit; "raise" raises its error.
    n_jobs, verbose, pre_dispatch
        scikit-learn's, for rows in memory.

    Returns
    -------
    dict of str to ndarray of shape (n_splits,)
        ``test_score`` (or ``test_NAME`` for each of several), ``fit_time``, ``score_time``, and
        other results that were requested.

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
        sklearn_result: dict[str, Any] = model_selection.cross_validate(
            estimator, X, y, groups=groups, scoring=scoring, cv=cv, n_jobs=n_jobs,
            verbose=verbose, params=fit_params or None, pre_dispatch=pre_dispatch,
            return_train_score=return_train_score, return_estimator=return_estimator,
            return_indices=return_indices, error_score=error_score,
        )  # fmt: skip
        return sklearn_result
    scorers = get_scorers(estimator, scoring)
    names, batched = name_scores(scoring), None
    with report_operation("cross_validate", verbose):
        splits = Splits(estimator, X, y, groups, fit_params, cv)
        weigh = resolve_score_weights(estimator, scorers, fit_params, False)
        # Scores of batched fits use the weights of rows, but scores here do so only if the weights
        # are routed; and estimators of batched fits lack the history of separate fits.
        if names is not None and not fit_params and not return_estimator:
            batched = fit_batched_or_pipelines(
                [estimator], splits, names, scorers, train_score=return_train_score,
                error_score=error_score,
            )  # fmt: skip
        (fits,) = splits.fit_splits(
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
            f"scoring={scoring!r}: only one score is allowed. Use cross_validate for several."
        )
    result = cross_validate(
        estimator, X, y, groups=groups, scoring=scoring, cv=cv, n_jobs=n_jobs, verbose=verbose,
        params=params, pre_dispatch=pre_dispatch, error_score=error_score,
    )  # fmt: skip
    if "test_score" not in result:
        raise InvalidParameterError(
            f"scoring={scoring!r} has returned several scores, and only one is allowed. Use "
            "cross_validate for several."
        )
    return np.asarray(result["test_score"])


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
    """Predict each row with an estimator fitted without its fold.

    Parameters
    ----------
    estimator, X, y, groups, cv, n_jobs, verbose, params, pre_dispatch
        As in :func:`cross_validate`. Every row is in the test rows of one split.
    method : str, default="predict"
        Argument of the estimator's method.

    Returns
    -------
    ndarray, or lazy dask Array where an input is a Dask collection; or a list of them
        Of shape (n_rows,) or (n_rows, n_outputs); a list with an item for each label if the method
        returns one. For a label that was not in a fit's rows, the probability is 0, and the
        decision value or log probability is the lowest number of the dtype.

    Raises
    ------
    InvalidParameterError
        Splits are no partition of the rows; raised when the predictions are computed. Or the
        estimator has no such method.
    InvalidDataError
        The rows of a fit had only two of more labels, and its decision function is requested.

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
    with _method_errors(estimator, method):
        if not any(map(is_dask, (X, y, groups, *fit_params.values()))):
            return model_selection.cross_val_predict(
                estimator, X, y, groups=groups, cv=cv, n_jobs=n_jobs, verbose=verbose,
                params=fit_params or None, pre_dispatch=pre_dispatch, method=method,
            )  # fmt: skip
        resolve_score_weights(estimator, {}, fit_params, False)  # checks what metadata is requested
        splits = Splits(estimator, X, y, groups, fit_params, cv)
        # No scorers: only the fitted estimators are needed. Without one of them its rows would have
        # no prediction, so a failed fit is an error.
        (fits,) = splits.fit_splits([estimator], {}, train_score=False, error_score="raise")
        return _predict_out_of_fold(splits.rows, [fit.estimator for fit in fits], method)


@contextmanager
def _method_errors(estimator: Any, method: Any) -> Iterator[None]:
    """Raise `InvalidParameterError` for a method that the estimator lacks, before it is fitted.

    Some methods depend on parameters, or exist only after the fit: their errors are translated.
    """
    kind = type(estimator)
    problem = f"method={method!r}: {kind.__name__} has no such method"
    # In its class even an unavailable method is found.
    name = method if isinstance(method, str) else ""
    attribute = getattr(kind, name, None) or getattr(estimator, name, None)
    if not callable(attribute) and not hasattr(kind, "__getattr__"):
        methods = [name for name in ("predict", *sorted(_CLASS_METHODS)) if hasattr(kind, name)]
        raise InvalidParameterError(
            f"{problem}. Pass one of {methods}.{suggest_nearest(method, methods)}"
        )
    try:
        yield
    except AttributeError as error:
        if hasattr(estimator, method):
            raise
        raise InvalidParameterError(
            f"{problem} with these parameters: {error}. Change them, or pass another method."
        ) from error


# --- predictions of test rows ------------------------------------------------------------------


#: Methods that return a column for each class; a fit may have seen fewer classes.
_CLASS_METHODS = frozenset({"predict_proba", "decision_function", "predict_log_proba"})


def _predict_out_of_fold(
    rows: RowsOfSplits, fitted: list[Any], method: str
) -> da.Array | list[da.Array]:
    """Return for each row, lazily, the prediction of the fit that was not trained on it."""
    classes = _find_every_class(fitted, method)
    if takes_dask_collections(fitted[0]):  # the first of equals: fits are clones of one estimator
        sample = rows.inputs[0]
    else:
        # A real row of X, since a made-up one may be refused: X may hold texts, for example.
        sample = find_first_row(part[0] for part in rows.columns.parts)
        if sample is None:
            raise InvalidDataError("X holds no rows. Give at least one.")
    # A trial prediction: a lazy array must know its dtype and number of columns.
    predictions_of_sample = getattr(fitted[0], method)(sample)
    # A forest, for example, returns a list of arrays for a target of several labels: one for each
    # label.
    is_list = isinstance(predictions_of_sample, list)
    arrays = [
        a if is_dask(a) else np.asarray(a)
        for a in (predictions_of_sample if is_list else [predictions_of_sample])
    ]
    empty = [
        np.empty((0, *(array.shape[1:] if classes is None else (len(classes),))), array.dtype)
        for array in arrays
    ]
    predictor = OutOfFoldPredictor([fitted], [method], classes)
    no_predictions = empty if is_list else empty[0]
    blocks: list[Any] = predictor.predict_blocks(
        rows, partial(_take_only_predictions, no_predictions)
    )
    if not is_list:
        return join_lazy_blocks(blocks, rows.columns, empty[0])
    return [
        join_lazy_blocks([block[label] for block in blocks], rows.columns, empty_label)
        for label, empty_label in enumerate(empty)
    ]


def _take_only_predictions(none: Any, X: Any, predictions: list[Any]) -> Any:
    """Return the predictions of the only estimator; `none`, without rows, for an empty block."""
    return predictions[0] if predictions else none


def _find_every_class(fitted: Sequence[Any], method: str) -> NDArray[Any] | None:
    """Return the labels that any fit has seen; None if all have seen the same, or have none."""
    labels_of_fits: list[Any] = [getattr(estimator, "classes_", None) for estimator in fitted]
    # Nor for several outputs, whose `classes_` are a list of arrays.
    if method not in _CLASS_METHODS or not all(
        isinstance(labels, np.ndarray) for labels in labels_of_fits
    ):
        return None
    if all(np.array_equal(labels, labels_of_fits[0]) for labels in labels_of_fits):
        return None
    classes: NDArray[Any] = np.unique(np.concatenate(labels_of_fits))
    # The decision function of two labels is one column, which cannot be placed among columns of
    # classes.
    if method == "decision_function" and min(map(len, labels_of_fits)) <= 2:
        raise InvalidDataError(
            f"A fit has seen only two of {len(classes)} labels, so its decision function has no "
            "values for the others. Split rows by StratifiedKFold, or use "
            "method='predict_proba'."
        )
    warnings.warn(
        "Number of classes in training fold does not match total number of classes "
        f"({len(classes)}): a fit has no values for labels that it has not seen. To fix this, "
        "use a cross-validation technique resulting in properly stratified folds.",
        RuntimeWarning,
        stacklevel=user_stack_level(),
    )
    return classes


# --- curves ------------------------------------------------------------------------------------


#: scikit-learn's default of `train_sizes`: shares of the training rows.
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
    """Return training and test scores for values of a parameter, by batched fits if possible.

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
    # The values are candidates of one batch: a pass trains the models of all values and splits.
    candidates = [clone(estimator).set_params(**{param_name: value}) for value in param_range]
    if not candidates:
        raise InvalidParameterError("param_range is empty. Name at least one value.")
    # Decided by the first: if others cannot join its batch, all are fitted one by one below.
    if _is_for_sklearn(candidates[:1], scoring, fit_params, X, y, groups):
        curves: tuple[Any, Any] = model_selection.validation_curve(
            estimator, X, y, param_name=param_name, param_range=param_range, groups=groups, cv=cv,
            scoring=scoring, n_jobs=n_jobs, pre_dispatch=pre_dispatch, verbose=verbose,
            error_score=error_score, params=fit_params or None,
        )  # fmt: skip
        return curves
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
    """Return training and test scores for sizes of the training rows, by batched fits if possible.

    Parameters
    ----------
    estimator : estimator
    X, y, groups : dask Array or DataFrame, or in memory, of shape (n_rows, ...)
        `y` may name a column of X. For Dask collections the client gets an integer for each row.
    train_sizes : sequence of float or int
        Shares or numbers of the first split's training rows.
    cv, scoring, params, error_score
        As in :func:`cross_val_score`.
    exploit_incremental_learning : bool, default=False
        Train on from size to size by ``partial_fit``; only for rows in memory.
    shuffle : bool, default=False
        Take the training rows of each size in random order, instead of the first ones.
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
            "exploit_incremental_learning=True needs rows in memory. Leave it out: all sizes of "
            "a linear model are one fit, and other models are fitted one by one."
        )
    if exploit_incremental_learning or _is_for_sklearn(
        [estimator], scoring, fit_params, X, y, groups
    ):
        curves: tuple[Any, ...] = model_selection.learning_curve(
            estimator, X, y, groups=groups, train_sizes=train_sizes, cv=cv, scoring=scoring,
            exploit_incremental_learning=exploit_incremental_learning, n_jobs=n_jobs,
            pre_dispatch=pre_dispatch, verbose=verbose, shuffle=shuffle,
            random_state=random_state, error_score=error_score, return_times=return_times,
            params=fit_params or None,
        )  # fmt: skip
        return curves
    # Codes contain the fold of a row, but not the order of rows in a fold: so here the client gets
    # row numbers.
    folds = _list_fold_rows(Splits(estimator, X, y, groups, fit_params, cv))
    # As in scikit-learn, shares refer to the first split's training rows, for all splits.
    sizes = _resolve_train_sizes(np.asarray(train_sizes), len(folds[0][0]))
    if shuffle:
        rng = check_random_state(random_state)
        folds = [(rng.permutation(train), test) for train, test in folds]
    # Each size of each fold becomes a split, so that one batched fit trains them all.
    sized_folds = [(train[:size], test) for train, test in folds for size in sizes]
    # `folds` already reflects the groups.
    splits = Splits(estimator, X, y, None, fit_params, sized_folds)
    (fits,) = _fit_and_score_both([estimator], splits, scoring, fit_params, error_score)

    # The splits are in the order of folds, then sizes.
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
    estimators: Sequence[Any], scoring: Any, params: Mapping[str, Any], *inputs: Any
) -> bool:
    """Return whether scikit-learn does the work: rows are in memory, and fits not batchable."""
    if any(map(is_dask, (*inputs, *params.values()))):
        return False
    # Several scores are an error of scikit-learn's: the curves support only one.
    has_several_scores = isinstance(scoring, list | tuple | set | dict)
    # Fits with `params` are not batched either (`_fit_and_score_both`).
    return has_several_scores or bool(params) or not can_fit_batched(estimators)


def _fit_and_score_both(
    estimators: Sequence[Any], splits: Splits, scoring: Any, params: Mapping[str, Any],
    error_score: Any,
) -> list[list[SplitFit]]:  # fmt: skip
    """Return the fits of each estimator with scores of both sides, batched if possible."""
    if scoring is not None and not isinstance(scoring, str) and not callable(scoring):
        raise InvalidParameterError(f"scoring={scoring!r}: only one score is allowed. Name one.")
    scorers = get_scorers(estimators[0], scoring)
    weigh = resolve_score_weights(estimators[0], scorers, params, False)
    options = {"train_score": True, "error_score": error_score}
    # Without weights: scores of batched fits would use them, but scikit-learn's do not.
    if not params:
        batched = fit_batched(estimators, splits, {"score": scoring}, scorers, **options)
        if batched is not None:
            return batched[0]
    return splits.fit_splits(estimators, scorers, **options, weigh_scores=weigh)


def _list_fold_rows(splits: Splits) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Return the numbers of the training and test rows of each split, computed if lazy."""
    if splits.codes is not None:
        return [(np.asarray(train), np.asarray(test)) for train, test in splits.indices]
    # Of each row only an integer is computed.
    codes = np.concatenate(compute_together(splits.rows.code_parts))
    roles = [splits.roles.assign_roles(codes, split) for split in range(splits.n_splits)]
    return [
        (np.flatnonzero(role_of_rows == TRAIN), np.flatnonzero(role_of_rows == TEST))
        for role_of_rows in roles
    ]


def _resolve_train_sizes(train_sizes: NDArray[Any], n_train: int) -> NDArray[np.int64]:
    """Return sorted, distinct numbers of training rows, given shares or numbers of them."""
    if train_sizes.ndim != 1 or not len(train_sizes) or train_sizes.dtype.kind not in "iuf":
        raise InvalidParameterError(
            f"train_sizes={train_sizes.tolist()}: give a sequence of shares or numbers of training "
            "rows."
        )
    if train_sizes.dtype.kind == "f":
        if not (train_sizes.min() > 0 and train_sizes.max() <= 1):
            raise InvalidParameterError(
                f"train_sizes={train_sizes.tolist()}: shares of the training rows must be within "
                "(0, 1]."
            )
        # A share of less than a row becomes one row, as in scikit-learn.
        train_sizes = np.clip((train_sizes * n_train).astype(np.int64), 1, n_train)
    elif train_sizes.min() <= 0 or train_sizes.max() > n_train:
        raise InvalidParameterError(
            f"train_sizes={train_sizes.tolist()}: numbers of training rows must be within (0, "
            f"{n_train}]."
        )
    # Different shares may be the same number of rows.
    sizes = np.unique(train_sizes.astype(np.int64))
    if len(sizes) < len(train_sizes):
        warnings.warn(
            f"Removed duplicate entries from 'train_sizes': {len(sizes)} are left of "
            f"{len(train_sizes)}.",
            RuntimeWarning,
            stacklevel=user_stack_level(),
        )
    return sizes
