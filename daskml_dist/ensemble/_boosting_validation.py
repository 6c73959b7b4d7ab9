"""Validation rows of boosting, and the scorers of early stopping.

`join_validation_sets` appends the user's sets to the rows of the fit, so that one pass bins them
all, each worker updates the raw predictions of its own rows, and the solver only needs ranges of
row numbers (`JoinedRanges`). `draw_holdout` draws rows if none are given. `make_stopping_scorer`
applies any scikit-learn scorer to the raw predictions of a running fit; since there is no fitted
estimator yet, a stand-in looks the predictions up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import ceil
from typing import Any

import dask.array as da
import numpy as np
from dask.utils import is_dataframe_like, is_series_like
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import get_scorer, get_scorer_names

from daskml_dist.backends.trees import sparse_rows_error
from daskml_dist.data.collection import (
    check_equal_lengths,
    check_same_length,
    count_blocks,
    find_length,
)
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.solvers.binning import StratifiedHoldout
from daskml_dist.solvers.boosting_scores import Scorer
from daskml_dist.training.dataset_info import DataSummary

#: X, y and weights of rows; weights may be None.
Inputs = tuple[Any, Any, Any]
Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class ValidationSets:
    """Validation sets that the user gives to `fit` (`X_val`, `eval_set`).

    Parameters
    ----------
    inputs : tuple of (X, y, sample_weight)
        The sets of `eval_set`, then `X_val` if it is given. The last set decides early stopping.
    arguments : tuple of (str, str, str)
        What errors call the three inputs of each set.
    keys : tuple of str
        Keys of the watched scores in the records of the fit, for each set and scoring.
    scorings : tuple of str, callable or None
        Scorings that are watched on each set of `eval_set`. Without `X_val`, the last of them also
        stops the fit; with `X_val`, the estimator's parameter `scoring` does.
    has_stopping_set : bool
        Whether the last set is `X_val`, which stops the fit and is not watched.
    """

    inputs: tuple[Inputs, ...]
    arguments: tuple[tuple[str, str, str], ...]
    keys: tuple[str, ...] = ()
    scorings: tuple[Any, ...] = ()
    has_stopping_set: bool = True


@dataclass(frozen=True, eq=False)
class JoinedRanges:
    """Ranges of the rows of the fit and of each validation set in the concatenated rows.

    Parameters
    ----------
    range_ends : tuple of int
        Where the rows of the fit end, then where each set ends; in blocks if `counts_blocks`.
    counts_blocks : bool
        Whether `range_ends` counts blocks, because the number of rows of some input is not known
        yet.
    target : ndarray or None
        Targets of the fit if all inputs are in memory, else None.
    weight : ndarray or None
        Weights of the fit if all inputs are in memory, else None.
    target_names : str
        What errors call the targets of the sets.
    """

    range_ends: tuple[int, ...]
    counts_blocks: bool
    target: Any
    weight: Any
    target_names: str

    def count_row_ends(self, summary: DataSummary) -> list[int]:
        """Return the row number at which the rows of the fit end, then those of each set."""
        if not self.counts_blocks:
            return list(self.range_ends)
        return [self._take_first_blocks(summary, end).n_rows for end in self.range_ends]

    def label_weights(self, summary: DataSummary, classes: NDArray[Any]) -> NDArray[np.float64]:
        """Return the sum of weights (or number of rows) of each class in the rows of the fit."""
        # Lazy targets were counted block by block, and the sets' blocks are left out. Targets in
        # memory can share a block with a set: they are counted here.
        if self.target is None:
            fit_blocks = self._find_fit_blocks(summary)
            sums, labels = fit_blocks.label_weights(classes), fit_blocks.classes
        else:
            labels, codes = np.unique(np.asarray(self.target), return_inverse=True)
            sums = np.zeros(len(classes))
            weight = None if self.weight is None else np.asarray(self.weight, np.float64)
            sums[np.searchsorted(classes, labels)] = np.bincount(
                codes, weight, minlength=len(labels)
            )
        if len(unseen := np.setdiff1d(classes, labels)):
            raise InvalidDataError(
                f"{self.target_names} contains previously unseen labels: {unseen.tolist()[:5]}. "
                "Hold out only rows of classes that y has."
            )
        return sums

    def _find_fit_blocks(self, summary: DataSummary) -> DataSummary:
        """Return the summary of the leading blocks, which hold the rows of the fit."""
        if self.counts_blocks:
            return self._take_first_blocks(summary, self.range_ends[0])
        infos, n_rows = sorted(summary.infos, key=lambda info: info.index), 0
        for number, info in enumerate(infos):
            if n_rows >= self.range_ends[0]:
                return DataSummary(infos[:number])
            n_rows += info.n_rows
        return DataSummary(infos)

    def _take_first_blocks(self, summary: DataSummary, n: int) -> DataSummary:
        """Return the summary of the first `n` blocks."""
        return DataSummary(sorted(summary.infos, key=lambda info: info.index)[:n])


def join_validation_sets(fit_inputs: Inputs, sets: ValidationSets) -> tuple[Inputs, JoinedRanges]:
    """Return X, y and weights with those of the validation sets appended, and their ranges."""
    _check_lengths(fit_inputs, ("X", "y", "sample_weight"))
    for inputs, arguments in zip(sets.inputs, sets.arguments, strict=True):
        _check_same_form(fit_inputs[0], inputs[0], arguments[0])
        _check_lengths(inputs, arguments)
    all_inputs = [fit_inputs, *sets.inputs]
    # If any has weights, the others get weights of 1, so that they can be concatenated.
    if len({inputs[2] is None for inputs in all_inputs}) > 1:
        all_inputs = [_with_unit_weights(inputs) for inputs in all_inputs]
    is_lazy = any(is_dask(array) for inputs in all_inputs for array in inputs)
    counts = [find_length(X) for X, _, _ in all_inputs]
    counts_blocks = any(n is None for n in counts)
    if counts_blocks:
        # Some length is unknown: count blocks. Rows in memory become one block.
        counts = [count_blocks(X) if is_dask(X) else 1 for X, _, _ in all_inputs]
    ranges = JoinedRanges(
        tuple(accumulate(n or 0 for n in counts)),
        counts_blocks,
        None if is_lazy else all_inputs[0][1],
        None if is_lazy else all_inputs[0][2],
        " or ".join(dict.fromkeys(names[1] for names in sets.arguments)),
    )
    # All X, all y, all weights.
    columns = zip(*all_inputs, strict=True)
    joined: Any = tuple(
        None if parts[0] is None else _concatenate_rows(parts, -1 if counts_blocks else "auto")
        for parts in columns
    )
    return joined, ranges


def _check_same_form(X: Any, X_val: Any, name: str) -> None:
    """Raise unless a set's rows have the type and the columns of those of the fit."""
    if issparse(X) or issparse(X_val):
        raise sparse_rows_error()
    is_frame, val_is_frame = is_dataframe_like(X), is_dataframe_like(X_val)
    if is_frame != val_is_frame:
        raise InvalidDataError(
            f"X {'is' if is_frame else 'is not'} a dataframe, and {name} "
            f"{'is' if val_is_frame else 'is not'}. Give both in the same form."
        )
    # Concatenation would align frames by name, and fill columns that one lacks with NaN, which is a
    # valid value here: the fit would continue on meaningless rows.
    if is_frame and list(X.columns) != list(X_val.columns):
        raise InvalidDataError(
            "The feature names should match those that were passed during fit: X has "
            f"{list(X.columns)[:8]}, {name} {list(X_val.columns)[:8]}. Put the columns in the "
            "same order: X_val[list(X.columns)]."
        )
    if not is_frame and X.ndim == X_val.ndim == 2 and X.shape[1] != X_val.shape[1]:
        raise InvalidDataError(
            f"{name} has {X_val.shape[1]} features, but {X.shape[1]} are expected, as in X. Give "
            "both the same columns."
        )


def _check_lengths(inputs: Inputs, names: tuple[str, str, str]) -> None:
    """Raise unless X, y and weights have equally many rows, or partitions if rows are unknown."""
    inputs_by_name = dict(zip(names, inputs, strict=True))
    lazy = {name: a for name, a in inputs_by_name.items() if is_dask(a) and find_length(a) is None}
    # Compare only like quantities: rows and partitions cannot be compared.
    check_equal_lengths(inputs_by_name)
    check_same_length({name: a.npartitions for name, a in lazy.items()}, "partitions")


def _with_unit_weights(inputs: Inputs) -> Inputs:
    """Return the inputs, with weights of 1 if they have none."""
    X, y, weight = inputs
    if weight is not None:
        return inputs
    if is_dask(y):
        if is_dataframe_like(y):  # targets with additional columns
            y_column = y[y.columns[0]]
        else:
            y_column = y[:, 0] if getattr(y, "ndim", 1) == 2 else y
        ones = (
            y_column.map_partitions(_make_unit_weights)
            if is_series_like(y_column)
            else da.ones_like(y_column, dtype=float)
        )
        return X, y, ones
    return X, y, np.ones(len(y))


def _make_unit_weights(y: Any) -> Any:
    """Return a float series of ones with the index of `y`."""
    # As objects first: categorical and nullable dtypes would survive `map`.
    return y.astype(object).map(lambda _: 1.0).astype(float)


def _concatenate_rows(arrays: Sequence[Any], chunks: int | str) -> Any:
    """Return the concatenation of inputs, lazy if any of them is.

    Arrays in memory are then divided into `chunks` (-1: a single block).
    """
    first = arrays[0]
    if any(np.isscalar(part) for part in arrays):
        raise InvalidDataError(
            "With X_val or eval_set, weights must be given per row: a single number for all "
            "rows is not accepted."
        )
    if any(is_dask(part) for part in arrays):
        if is_dataframe_like(first) or is_series_like(first):
            return _concatenate_frames(arrays)
        lazy = [p if is_dask(p) else da.from_array(np.asarray(p), chunks) for p in arrays]
        if lazy[0].ndim == 2:
            # One chunk of columns each: a set's columns may be chunked differently from those of X.
            lazy = [part.rechunk({1: -1}) for part in lazy]
        return da.concatenate(lazy)
    if all(hasattr(part, "iloc") for part in arrays):
        import pandas as pd

        return pd.concat(arrays, ignore_index=True)
    return np.concatenate([np.asarray(part) for part in arrays])


def _concatenate_frames(tables: Sequence[Any]) -> Any:
    """Return the Dask concatenation of frames or series, those in memory as one partition."""
    import dask.dataframe as dd
    import pandas as pd

    lazy, first = [], tables[0]
    for part in tables:
        if not is_dask(part):
            if not hasattr(part, "iloc"):
                values = np.asarray(part)
                # Targets with additional columns are tables.
                is_table = values.ndim == 2 and is_dataframe_like(first)
                part = (
                    pd.DataFrame(values, columns=first.columns) if is_table else pd.Series(values)
                )
            # Unsorted: X, y and weights must keep the same order of rows.
            part = dd.from_pandas(part, npartitions=1, sort=False)
        lazy.append(part)
    return dd.concat(lazy)


def draw_holdout(
    summary: DataSummary, classes: NDArray[Any] | None, size: float, seed: int
) -> StratifiedHoldout:
    """Return the rows to hold out, stratified; `size`: number of rows (>= 1) or share."""
    # The number of rows of each class in each block gives the rank of a row among those of its
    # class, from which each worker hashes the draws of its own rows.
    infos = sorted(summary.infos, key=lambda info: info.index)
    counts = np.zeros((len(infos), 1 if classes is None else len(classes)), np.int64)
    for block_counts, info in zip(counts, infos, strict=True):
        if classes is None:
            block_counts[0] = info.n_rows
        elif info.labels is not None and info.label_rows is not None:
            block_counts[np.searchsorted(classes, info.labels)] = info.label_rows
    n_rows = counts.sum(axis=1)
    first_rows, n = n_rows.cumsum() - n_rows, int(n_rows.sum())
    # Rounded up, like the test rows of scikit-learn's `train_test_split`.
    n_held = int(size) if size >= 1 else ceil(size * n)
    # Each class keeps at least one row to train on.
    if n_held > n - counts.shape[1]:
        raise InvalidDataError(
            f"Early stopping leaves {max(n - n_held, 0)} rows to train on and {n_held} to validate "
            "with. Change validation_fraction, or set early_stopping=False."
        )
    return StratifiedHoldout(first_rows[n_rows > 0], counts[n_rows > 0], n_held, seed)


def check_scoring(scoring: Any) -> None:
    """Raise unless `scoring` is "loss", None, a function or the name of a scorer."""
    if scoring is None or callable(scoring) or scoring == "loss":
        return
    if not isinstance(scoring, str) or scoring not in get_scorer_names():
        raise InvalidParameterError(
            f'scoring={scoring!r}: use "loss", None for the score of the estimator, a name of '
            "sklearn.metrics.get_scorer_names(), or a function of (estimator, X, y)."
            f"{suggest_nearest(scoring, ['loss', *get_scorer_names()])}"
        )


def make_stopping_scorer(
    scoring: Any, classes: Array | None, inverse_link: Callable[[Array], Array] | None
) -> Scorer | None:
    """Return the scorer for a checked `scoring`; None for "loss", which needs no scorer.

    `inverse_link` gives the targets of a regressor, the probabilities of a classifier.
    """
    if isinstance(scoring, str) and scoring == "loss":
        return None
    return partial(_score_raw_predictions, scoring, classes, inverse_link)


def class_probabilities(raw: Array) -> Array:
    """Return class probabilities from raw predictions: log odds (1-d) or one column a class."""
    if raw.ndim == 1:
        probabilities = np.empty((len(raw), 2))
        expit(raw, out=probabilities[:, 1])
        # The complement, not `expit` of minus the raw prediction: rows add up to 1.
        np.subtract(1, probabilities[:, 1], out=probabilities[:, 0])
        return probabilities
    return np.asarray(softmax(raw, axis=1))


def _score_raw_predictions(
    scoring: Any, classes: Array | None, inverse_link: Callable[[Array], Array] | None,
    raw: Array, y: Array, weight: Array | None,
) -> float:  # fmt: skip
    """Score raw predictions, instead of an estimator, by a scikit-learn scoring.

    The scoring is called with a stand-in estimator that looks up the predictions of each row.
    `inverse_link` maps raw predictions of a regressor to the scale of the target, those of a
    classifier (with `classes`) to probabilities; None: by the log loss.
    """
    # One column belongs to a regressor, or is the log odds of two classes.
    raw = raw[:, 0] if raw.shape[1] == 1 else raw
    estimator: Any
    if classes is None:
        assert inverse_link is not None
        estimator = _LookupRegressor(inverse_link(raw))
    else:
        shares = inverse_link or class_probabilities
        estimator, y = _LookupClassifier(raw, classes, shares), classes[y.astype(np.intp)]
    # X holds row numbers, so that a user's function may also score a subset of the rows.
    arguments = (estimator, np.arange(len(y))[:, None], y)
    keywords = {} if weight is None else {"sample_weight": weight}
    # Errors of scikit-learn's scorers are translated; errors of a user's function are not.
    if isinstance(scoring, str):
        try:
            return float(get_scorer(scoring)(*arguments, **keywords))
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidDataError(
                f"scoring={scoring!r} cannot score the rows: {error}. Use a scorer for such "
                'targets and predictions, or "loss".'
            ) from error
    score = (scoring or _score_by_estimator)(*arguments, **keywords)
    try:
        return float(score)
    except (TypeError, ValueError) as error:
        raise InvalidDataError(
            f"scoring={scoring!r} returned {type(score).__name__}. It must return one number."
        ) from error


def _score_by_estimator(
    estimator: Any, X: Array, y: Array, sample_weight: Array | None = None
) -> Any:
    """Return the estimator's own `score`, the scoring of ``scoring=None``."""
    return estimator.score(X, y, sample_weight)


class _LookupRegressor(RegressorMixin, BaseEstimator):
    """Regressor that looks its predictions up by the row numbers in X."""

    def __init__(self, predictions: Array) -> None:
        self.predictions = predictions

    def predict(self, X: Array) -> Array:
        return np.asarray(self.predictions[np.asarray(X)[:, 0]])


class _LookupClassifier(ClassifierMixin, BaseEstimator):
    """Classifier that looks its raw predictions up by the row numbers in X."""

    def __init__(self, raw: Array, classes: Array, shares: Callable[[Array], Array]) -> None:
        self.raw, self.classes, self.shares = raw, classes, shares
        self.classes_ = classes

    def decision_function(self, X: Array) -> Array:
        return np.asarray(self.raw[np.asarray(X)[:, 0]])

    def predict_proba(self, X: Array) -> Array:
        return self.shares(self.decision_function(X))

    def predict(self, X: Array) -> Array:
        raw = self.decision_function(X)
        return np.asarray(self.classes_[(raw > 0).astype(int) if raw.ndim == 1 else raw.argmax(1)])
