"""Predictions of test rows, each by the fit that has not seen it; lazy."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.model_selection._checks import knows_dask
from daskml_dist.model_selection._roles import TEST, FoldAssignment, Ints
from daskml_dist.model_selection._split_rows import RowsOfSplits, n_rows_of

__all__ = ["predicted_out_of_fold"]

#: What a fit says of a label that it has not met, by the method; scikit-learn's numbers.
_UNMET = {"predict_proba": 0.0, "decision_function": None, "predict_log_proba": None}


def predicted_out_of_fold(rows: RowsOfSplits, fitted: Sequence[Any], method: str) -> da.Array:
    """Of each row, what the fit says that does not know it."""
    classes = _every_class(fitted, method)
    parts = [part[0] for part in rows.columns.parts]
    if all(map(knows_dask, fitted)):
        lazily = [getattr(one, method)(rows.inputs[0]) for one in fitted]
        meta, counts = lazily[0]._meta, lazily[0].chunks[0]
        tail = lazily[0].shape[1:]
        pieces = [value.to_delayed().reshape(len(parts), -1)[:, 0] for value in lazily]
    else:
        answer = delayed(partial(_answer, method), pure=False)
        once = [delayed(one, pure=False) for one in fitted]
        meta = np.asarray(getattr(fitted[0], method)(_first_row(parts)))[:0]
        counts, tail = rows.columns.row_counts or [np.nan] * len(parts), meta.shape[1:]
        pieces = [[answer(one, part) for part in parts] for one in once]
    tail = tail if classes is None else (len(classes),)
    wide = [None if classes is None else np.searchsorted(classes, f.classes_) for f in fitted]
    choose = delayed(partial(_choose, rows.roles, wide, tail, _UNMET.get(method)), pure=False)
    chosen = [
        da.from_delayed(choose(codes, *found), (n, *tail), meta=meta)
        for codes, n, *found in zip(rows.code_parts, counts, *pieces, strict=True)
    ]
    of_tests: da.Array = da.concatenate(chosen)
    return of_tests


def _every_class(fitted: Sequence[Any], method: str) -> NDArray[Any] | None:
    """Labels that fits have met; None where all have met the same, or answer of no labels."""
    known: list[Any] = [getattr(one, "classes_", None) for one in fitted]
    if method not in _UNMET or not all(isinstance(some, np.ndarray) for some in known):
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


def _first_row(parts: Sequence[Any]) -> Any:
    """A row, of the first block that has any."""
    take = delayed(_head, pure=False)
    for part in parts:
        row = take(part).compute()
        if n_rows_of(row):
            return row
    raise InvalidDataError("X holds no rows. Give at least one.")


def _head(rows: Any) -> Any:
    return rows.iloc[:1] if hasattr(rows, "iloc") else rows[:1]


def _answer(method: str, fitted: Any, rows: Any) -> Any:
    """Answers about the rows of a block; None of no rows, which scikit-learn refuses."""
    return np.asarray(getattr(fitted, method)(rows)) if n_rows_of(rows) else None


def _choose(
    roles: FoldAssignment,
    wide: list[Ints | None],
    tail: tuple[int, ...],
    unmet: float | None,
    codes: Ints,
    *predicted: Any,
) -> NDArray[Any]:
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
