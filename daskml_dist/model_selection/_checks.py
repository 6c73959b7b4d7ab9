"""Checks of what cross-validation is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any

import numpy as np
from sklearn import model_selection
from sklearn.base import is_classifier
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from daskml_dist.data.collection import as_collection
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.model_selection import _splitters
from daskml_dist.model_selection._codes import Given
from daskml_dist.model_selection._roles import (
    NEITHER,
    TEST,
    TRAIN,
    DigitRoles,
    FoldAssignment,
    TableRoles,
)
from daskml_dist.model_selection._split_rows import RowsOfSplits, count_rows
from daskml_dist.model_selection._splitters import KFold, OnDask, StratifiedKFold

__all__ = [
    "check_cv",
    "check_roles",
    "check_splitter",
    "check_target",
    "codes_of_indices",
    "has_columns",
    "knows_dask",
    "rows_of",
    "splits_in_memory",
    "tell_roles",
]


def check_splitter(cv: Any, estimator: Any, y: Any) -> Any:
    """Splitter that `cv` asks for, as scikit-learn takes it."""
    check_cv(cv)
    cv = 5 if cv is None else cv
    if isinstance(cv, Integral):
        stratified = y is not None and is_classifier(estimator) and not has_columns(y)
        return (StratifiedKFold if stratified else KFold)(int(cv))
    if hasattr(cv, "split"):
        ours = getattr(_splitters, type(cv).__name__, None)
        if isinstance(cv, OnDask) or ours is None or type(cv) not in ours.__mro__:
            return cv
        # scikit-learn's, which knows no Dask collections.
        found = ours.__new__(ours)
        found.__dict__.update(vars(cv))
        return found
    return model_selection.check_cv(list(cv))


def check_cv(cv: Any) -> None:
    """Check that `cv` is a number of folds, a splitter, an iterable of splits, or None."""
    if isinstance(cv, Integral) and not isinstance(cv, bool):
        if cv < 2:
            raise InvalidParameterError(f"cv={cv}: at least 2 folds are needed.")
    elif isinstance(cv, str) or not (
        cv is None or hasattr(cv, "split") or isinstance(cv, Iterable)
    ):
        raise InvalidParameterError(
            f"cv={cv!r}: use a number of folds, a splitter such as KFold(5), or an iterable of "
            "(train, test) arrays of row numbers."
        )


def check_target(estimator: Any, y: Any) -> None:
    """Check that an estimator is an object, and that it has the target that it learns."""
    if isinstance(estimator, type):
        raise InvalidParameterError(
            f"estimator={estimator.__name__}:{suggest_nearest(estimator, ())}"
        )
    if y is None and get_tags(estimator).target_tags.required:
        raise InvalidDataError(
            f"y is None, and {type(estimator).__name__} requires y to be passed: its target, or "
            "the name of the column of X that holds it."
        )


def has_columns(y: Any) -> bool:
    """Return whether targets have several columns, as those of rows with several labels have."""
    shape: tuple[int, ...] = getattr(y, "shape", ())
    return len(shape) == 2 and shape[1] != 1


def rows_of(splitter: Any, inputs: tuple[Any, ...], y: Any, groups: Any) -> RowsOfSplits:
    """The rows of Dask inputs (X first) with the codes of a splitter's splits.

    A splitter that knows no Dask collections is asked for row numbers, of rows that it does not
    see.
    """
    if isinstance(splitter, OnDask):
        return splitter.rows(inputs, y, groups)
    columns = as_collection(inputs[0], numeric=False, any_shape=True)
    counts = count_rows(columns)
    n = int(counts.sum())
    given = [None if value is None else np.asarray(_here(value)) for value in (y, groups)]
    splits = splits_in_memory(splitter, np.empty((n, 1)), *given)
    codes, roles = codes_of_indices(splits, n)
    stops = counts.cumsum()
    blocks = tuple(codes[stop - m : stop] for m, stop in zip(counts, stops, strict=True))
    return RowsOfSplits(inputs, columns, Given(blocks), roles)


def splits_in_memory(splitter: Any, X: Any, y: Any, groups: Any) -> list[tuple[Any, Any]]:
    """A splitter's (train, test) row numbers."""
    splits = list(splitter.split(X, y, groups))
    if not splits:
        raise InvalidParameterError(
            "No fits were performed. Was the CV iterator empty? Were there no candidates? An "
            "iterator is used up by its first use: pass list(...) of it."
        )
    told = splitter.get_n_splits(X, y, groups)
    if told != len(splits):
        raise InvalidParameterError(
            f"cv.split and cv.get_n_splits return inconsistent results. Expected {told} splits, "
            f"got {len(splits)}. Mend one of these methods of {type(splitter).__name__}."
        )
    return splits


def tell_roles(splits: list[tuple[Any, Any]], n: int) -> bool:
    """Return whether every row plays one part in each split, once: what a code a row can tell."""
    rows = np.arange(n)
    sides = (np.concatenate([rows[np.asarray(side)] for side in split]) for split in splits)
    return all(np.bincount(at, minlength=1).max() <= 1 for at in sides)


def check_roles(told: bool) -> None:
    """Refuse splits in which a row plays several parts."""
    if not told:
        raise InvalidParameterError(
            "cv: a split trains on rows that it tests, or has a row several times. Here a row "
            "plays one part in a split. Give each row once (rows that count several times by "
            "sample_weight), or search over rows in memory, by GridSearchCV."
        )


def codes_of_indices(splits: list[tuple[Any, Any]], n: int) -> tuple[Any, FoldAssignment]:
    """Codes of rows, and what these mean, of (train, test) row numbers or masks."""
    check_roles(tell_roles(splits, n))
    table = np.full((n, len(splits)), NEITHER, np.int8)
    for split, (train, test) in enumerate(splits):
        table[np.asarray(train), split] = TRAIN
        table[np.asarray(test), split] = TEST
    if len(splits) <= DigitRoles.most:
        roles = DigitRoles(len(splits))
        return roles.codes(list(table.T)), roles
    rows, codes = np.unique(table, axis=0, return_inverse=True)
    return codes.ravel().astype(np.int64), TableRoles(rows)


def _here(value: Any) -> Any:
    return value.compute() if hasattr(value, "compute") else value


def knows_dask(estimator: Any) -> bool:
    """Say if an estimator takes Dask collections: one of ours, frozen, or a pipeline of such."""
    if isinstance(estimator, FrozenEstimator):
        return knows_dask(estimator.estimator)
    if isinstance(estimator, Pipeline):
        return all(step == "passthrough" or knows_dask(step) for _, step in estimator.steps)
    return any(kind.__module__.startswith("daskml_dist") for kind in type(estimator).__mro__)
