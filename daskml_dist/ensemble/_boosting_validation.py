"""Rows that boosting holds out or is given to be scored, and the scores of early stopping.

`join_rows` puts the sets that a user gives behind the rows of the fit, so that one pass bins them
all; `JoinedRows` finds them again. `choose_held_out_rows` draws rows where none are given, and
`make_scorer` lets any scorer of scikit-learn score the raw predictions of a fit under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.solvers.binning import StratifiedHoldout
from daskml_dist.solvers.boosting_scores import Scorer
from daskml_dist.training.dataset_info import DataSummary

__all__ = [
    "GivenSets",
    "JoinedRows",
    "check_scoring",
    "choose_held_out_rows",
    "compute_probabilities",
    "join_rows",
    "make_scorer",
]

Inputs = tuple[Any, Any, Any]


@dataclass(frozen=True, eq=False)
class GivenSets:
    """Sets of rows that the user gives beside those of the fit.

    Parameters
    ----------
    inputs : tuple of (X, y, sample_weight)
        The set to stop early by comes last.
    arguments : tuple of (str, str, str)
        Names of the inputs of each set, for errors.
    keys : tuple of str
        Keys of the scores that are watched, in the records of the fit.
    scorings : tuple of str, callable or None
        Scores that are watched, of each of the first sets; the last one stops the fit.
    has_stopping_set : bool
        Whether the last set is not watched.
    """

    inputs: tuple[Inputs, ...]
    arguments: tuple[tuple[str, str, str], ...]
    keys: tuple[str, ...] = ()
    scorings: tuple[Any, ...] = ()
    has_stopping_set: bool = True


@dataclass(frozen=True, eq=False)
class JoinedRows:
    """Ranges of the rows of the fit, and of each set behind them, among the joined rows.

    Parameters
    ----------
    ends : tuple of int
        Rows up to the end of those of the fit and of each set; blocks where `of_blocks`.
    of_blocks : bool
    target : ndarray or None
        Targets of the fit, where all are in memory.
    weight : ndarray or None
        Weights of the fit, likewise.
    targets_are_called : str
        Names of the targets of the sets, for errors.
    """

    ends: tuple[int, ...]
    of_blocks: bool
    target: Any
    weight: Any
    targets_are_called: str

    def row_ends(self, survey: DataSummary) -> list[int]:
        """Return the number of rows up to the end of those of the fit, and of each set."""
        if not self.of_blocks:
            return list(self.ends)
        return [self._take_first_blocks(survey, end).n_rows for end in self.ends]

    def label_weights(self, survey: DataSummary, classes: NDArray[Any]) -> NDArray[np.float64]:
        """Return the weight of each class in the fit: a sum of weights, or a number of rows."""
        # Lazy targets were counted by block; those in memory are counted here, without the sets.
        if self.target is None:
            of_fit = self._find_blocks_of_fit(survey)
            sums, found = of_fit.label_weights(classes), of_fit.classes
        else:
            found, at = np.unique(np.asarray(self.target), return_inverse=True)
            sums = np.zeros(len(classes))
            weight = None if self.weight is None else np.asarray(self.weight, np.float64)
            sums[np.searchsorted(classes, found)] = np.bincount(at, weight, minlength=len(found))
        if len(strange := np.setdiff1d(classes, found)):
            raise InvalidDataError(
                f"{self.targets_are_called} contains previously unseen labels: "
                f"{strange.tolist()[:5]}. Hold out rows of the classes that y has."
            )
        return sums

    def _find_blocks_of_fit(self, survey: DataSummary) -> DataSummary:
        """Return the summary of the blocks that hold the rows of the fit alone."""
        if self.of_blocks:
            return self._take_first_blocks(survey, self.ends[0])
        infos, n_rows = sorted(survey.infos, key=lambda info: info.index), 0
        for number, info in enumerate(infos):
            if n_rows >= self.ends[0]:
                return DataSummary(infos[:number])
            n_rows += info.n_rows
        return DataSummary(infos)

    def _take_first_blocks(self, survey: DataSummary, n: int) -> DataSummary:
        return DataSummary(sorted(survey.infos, key=lambda info: info.index)[:n])


def join_rows(given: Inputs, sets: GivenSets) -> tuple[Inputs, JoinedRows]:
    """Return X, y and weights with those of the sets behind them."""
    _check_lengths(given, ("X", "y", "sample_weight"))
    for inputs, arguments in zip(sets.inputs, sets.arguments, strict=True):
        _check_same_form(given[0], inputs[0], arguments[0])
        _check_lengths(inputs, arguments)
    every = [given, *sets.inputs]
    # Either all inputs have weights, or none has.
    if len({inputs[2] is None for inputs in every}) > 1:
        every = [_with_unit_weights(inputs) for inputs in every]
    lazy = any(is_dask(a) for inputs in every for a in inputs)
    counts = [_count_known_rows(X) for X, _, _ in every]
    of_blocks = any(n is None for n in counts)
    if of_blocks:
        # Where some lengths are unknown, blocks are counted; rows in memory become one.
        counts = [_count_blocks(X) for X, _, _ in every]
    where = JoinedRows(
        tuple(accumulate(n or 0 for n in counts)),
        of_blocks,
        None if lazy else every[0][1],
        None if lazy else every[0][2],
        " or ".join(dict.fromkeys(names[1] for names in sets.arguments)),
    )
    columns = zip(*every, strict=True)
    found: Any = tuple(
        None if parts[0] is None else _concatenate_rows(parts, -1 if of_blocks else "auto")
        for parts in columns
    )
    return found, where


def _check_same_form(X: Any, X_val: Any, name: str) -> None:
    if issparse(X) or issparse(X_val):
        raise sparse_rows_error()
    frames = is_dataframe_like(X), is_dataframe_like(X_val)
    if frames[0] != frames[1]:
        raise InvalidDataError(
            f"X {'is' if frames[0] else 'is not'} a dataframe, and {name} "
            f"{'is' if frames[1] else 'is not'}. Give both in one form."
        )
    if frames[0] and list(X.columns) != list(X_val.columns):
        raise InvalidDataError(
            "The feature names should match those that were passed during fit: X has "
            f"{list(X.columns)[:8]}, {name} {list(X_val.columns)[:8]}. Order the columns alike: "
            "X_val[list(X.columns)]."
        )
    if not frames[0] and X.ndim == X_val.ndim == 2 and X.shape[1] != X_val.shape[1]:
        raise InvalidDataError(
            f"{name} has {X_val.shape[1]} features, but {X.shape[1]} are expected: X has as many. "
            "Give both the same columns."
        )


def _check_lengths(inputs: Inputs, names: tuple[str, str, str]) -> None:
    for what in (_count_known_rows, _count_partitions):
        known = {
            name: n for name, a in zip(names, inputs, strict=True) if (n := what(a)) is not None
        }
        if len(set(known.values())) > 1:
            told = ", ".join(f"{name} has {n}" for name, n in known.items())
            unit = "rows" if what is _count_known_rows else "partitions"
            raise InvalidDataError(
                f"Found input variables with inconsistent numbers of samples: {told} {unit}. Pass "
                "the same rows in each, in the same order."
            )


def _with_unit_weights(inputs: Inputs) -> Inputs:
    """Return the inputs with weights of 1 where there are none."""
    X, y, weight = inputs
    if weight is not None:
        return inputs
    if is_dask(y):
        ones = (
            y.map_partitions(_make_unit_weights)
            if is_series_like(y)
            else da.ones_like(y, dtype=float)
        )
        return X, y, ones
    return X, y, np.ones(len(y))


def _make_unit_weights(y: Any) -> Any:
    # By way of objects: a categorical or nullable dtype would keep its kind.
    return y.astype(object).map(lambda _: 1.0).astype(float)


def _count_known_rows(X: Any) -> int | None:
    """Return the number of rows; None where it is not known before they are read."""
    if X is None or np.isscalar(X):
        return None
    if is_dask(X) and (is_dataframe_like(X) or is_series_like(X) or np.isnan(X.shape[0])):
        return None
    return int(X.shape[0]) if hasattr(X, "shape") else len(X)


def _count_partitions(X: Any) -> int | None:
    """Return the number of partitions of rows of unknown number; else None."""
    return int(X.npartitions) if is_dask(X) and _count_known_rows(X) is None else None


def _count_blocks(X: Any) -> int:
    """Return the number of blocks that rows have when `_concatenate_rows` has joined them."""
    if not is_dask(X):
        return 1
    is_frame = is_dataframe_like(X) or is_series_like(X)
    return int(X.npartitions) if is_frame else int(X.numblocks[0])


def _concatenate_rows(parts: Sequence[Any], chunks: int | str) -> Any:
    """Return the rows of some inputs of one kind, one behind the other.

    Where some are lazy, an array in memory is cut into `chunks` (-1: one block).
    """
    first = parts[0]
    if any(np.isscalar(part) for part in parts):
        raise InvalidDataError(
            "With X_val or eval_set, weights are to be given a row: a number for all rows has no "
            "length."
        )
    if any(is_dask(part) for part in parts):
        if is_dataframe_like(first) or is_series_like(first):
            return _concatenate_frames(parts)
        lazy = [p if is_dask(p) else da.from_array(np.asarray(p), chunks) for p in parts]
        if lazy[0].ndim == 2:
            lazy = [part.rechunk({1: -1}) for part in lazy]
        return da.concatenate(lazy)
    if all(hasattr(part, "iloc") for part in parts):
        import pandas as pd

        return pd.concat(parts, ignore_index=True)
    return np.concatenate([np.asarray(part) for part in parts])


def _concatenate_frames(parts: Sequence[Any]) -> Any:
    import dask.dataframe as dd
    import pandas as pd

    lazy = []
    for part in parts:
        if not is_dask(part):
            part = part if hasattr(part, "iloc") else pd.Series(np.asarray(part))
            part = dd.from_pandas(part, npartitions=1, sort=False)
        lazy.append(part)
    return dd.concat(lazy)


def choose_held_out_rows(
    survey: DataSummary, classes: NDArray[Any] | None, share: float, seed: int
) -> StratifiedHoldout:
    """Return the rows to hold out, of each class in proportion to its rows."""
    # Rows of each class in each block: a worker can then draw its part of the held-out rows alone.
    infos = sorted(survey.infos, key=lambda info: info.index)
    counts = np.zeros((len(infos), 1 if classes is None else len(classes)), np.int64)
    for of_block, info in zip(counts, infos, strict=True):
        if classes is None:
            of_block[0] = info.n_rows
        elif info.labels is not None and info.label_rows is not None:
            of_block[np.searchsorted(classes, info.labels)] = info.label_rows
    n_rows = counts.sum(axis=1)
    first, n = n_rows.cumsum() - n_rows, int(n_rows.sum())
    held = int(share) if share >= 1 else ceil(share * n)
    if held > n - counts.shape[1]:
        raise InvalidDataError(
            f"Early stopping leaves {max(n - held, 0)} rows to train on and {held} to validate "
            "with. Change validation_fraction, or set early_stopping=False."
        )
    return StratifiedHoldout(first[n_rows > 0], counts[n_rows > 0], held, seed)


Array = NDArray[Any]


def check_scoring(scoring: Any) -> None:
    """Check the parameter `scoring` of a fit."""
    if scoring is None or callable(scoring) or scoring == "loss":
        return
    if not isinstance(scoring, str) or scoring not in get_scorer_names():
        raise InvalidParameterError(
            f'scoring={scoring!r}: use "loss", None for the score of the estimator, a name of '
            "sklearn.metrics.get_scorer_names(), or a function of (estimator, X, y)."
            f"{suggest_nearest(scoring, ['loss', *get_scorer_names()])}"
        )


def make_scorer(
    scoring: Any, classes: Array | None, inverse_link: Callable[[Array], Array] | None
) -> Scorer | None:
    """Return the scorer of a parameter that is checked; None for the loss."""
    if isinstance(scoring, str) and scoring == "loss":
        return None
    return _StoppingScore(scoring, classes, inverse_link)


def compute_probabilities(raw: Array) -> Array:
    """Return the probabilities of the classes from raw predictions."""
    if raw.ndim == 1:
        found = np.empty((len(raw), 2))
        expit(raw, out=found[:, 1])
        np.subtract(1, found[:, 1], out=found[:, 0])
        return found
    return np.asarray(softmax(raw, axis=1))


@dataclass(frozen=True, eq=False)
class _StoppingScore:
    """Score of some rows by their raw predictions.

    Parameters
    ----------
    scoring : str, callable or None
    classes : ndarray or None
    inverse_link : callable or None
        From raw predictions to targets; of a regressor alone, which has no classes.
    """

    scoring: Any
    classes: Array | None
    inverse_link: Callable[[Array], Array] | None

    def __call__(self, raw: Array, y: Array, weight: Array | None) -> float:
        # One column is a regressor's, or the log odds of two classes.
        raw = raw[:, 0] if raw.shape[1] == 1 else raw
        estimator: Any
        if self.inverse_link is not None:
            estimator = _KnownRegressor(self.inverse_link(raw))
        else:
            assert self.classes is not None
            estimator, y = _KnownClassifier(raw, self.classes), self.classes[y.astype(np.intp)]
        # X holds the row numbers, so that a user's function may score a part of the rows.
        given = (estimator, np.arange(len(y))[:, None], y)
        more = {} if weight is None else {"sample_weight": weight}
        # scikit-learn's scorers get an error of the package; a user's function keeps its own.
        if isinstance(self.scoring, str):
            try:
                return float(get_scorer(self.scoring)(*given, **more))
            except (AttributeError, TypeError, ValueError) as error:
                raise InvalidDataError(
                    f"scoring={self.scoring!r} cannot score the rows: {error}. Use a scorer of "
                    'such targets and predictions, or "loss".'
                ) from error
        found = (self.scoring or _score_by_estimator)(*given, **more)
        try:
            return float(found)
        except (TypeError, ValueError) as error:
            raise InvalidDataError(
                f"scoring={self.scoring!r} answered {type(found).__name__}. Return one number."
            ) from error


def _score_by_estimator(
    estimator: Any, X: Array, y: Array, sample_weight: Array | None = None
) -> Any:
    return estimator.score(X, y, sample_weight)


class _KnownRegressor(RegressorMixin, BaseEstimator):
    """Regressor whose predictions are known, and looked up by the row numbers in X."""

    def __init__(self, answers: Array) -> None:
        self.answers = answers

    def predict(self, X: Array) -> Array:
        return np.asarray(self.answers[np.asarray(X)[:, 0]])


class _KnownClassifier(ClassifierMixin, BaseEstimator):
    """Classifier whose raw predictions are known, and looked up by the row numbers in X."""

    def __init__(self, raw: Array, classes: Array) -> None:
        self.raw, self.classes = raw, classes
        self.classes_ = classes

    def decision_function(self, X: Array) -> Array:
        return np.asarray(self.raw[np.asarray(X)[:, 0]])

    def predict_proba(self, X: Array) -> Array:
        return compute_probabilities(self.decision_function(X))

    def predict(self, X: Array) -> Array:
        raw = self.decision_function(X)
        return np.asarray(self.classes_[(raw > 0).astype(int) if raw.ndim == 1 else raw.argmax(1)])
