"""Members of ensembles: their fits to Dask collections, and the labels of lazy targets.

A member of this package is fitted on the whole cluster. A member of another package, which does not
support Dask collections, is fitted in a task on rows gathered there, so that several members are
fitted in parallel. If there are few rows, members of this package are fitted in such tasks too,
since a fit on a cluster takes longer to start than these rows take to be fitted.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from dask.base import compute
from dask.delayed import Delayed, delayed
from dask.utils import is_dataframe_like, is_series_like
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.metadata_routing import process_routing
from sklearn.utils.validation import has_fit_parameter

from daskml_dist.data.block_errors import mark_own_errors, name_blocks_in_errors
from daskml_dist.data.collection import (
    Collection,
    as_collection,
    count_rows_of_block,
    take_named_columns,
)
from daskml_dist.data.computing import compute_together
from daskml_dist.data.conversion import as_column as column_of
from daskml_dist.data.conversion import (
    check_class_labels,
    check_no_missing,
    check_unique_names,
    convert_extension_column,
    convert_object_values,
    convert_to_array,
    expand_weights,
    join_blocks,
)
from daskml_dist.data.lazy import is_dask, is_dask_frame
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.data.row_checks import explain_unsortable_labels, merge_block_labels
from daskml_dist.diagnostics.operation_progress import report_phase
from daskml_dist.errors import (
    InvalidDataError,
    InvalidParameterError,
    InvalidTypeError,
)
from daskml_dist.errors.sklearn_errors import translate_parameter_errors
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.base import as_column
from daskml_dist.model_selection._batched_fits import fit_batched
from daskml_dist.model_selection._validation import (
    Splits,
    fit_clone,
    merge_fit_params,
    takes_dask_collections,
)
from daskml_dist.sklearn_internals import is_metadata_routing_enabled

#: Largest number of entries of X (8 MiB of float64) for which a member is fitted in one task, on
#: all rows: for fewer entries, starting and synchronising several processes takes longer than the
#: arithmetic (`benchmarks/break_even.py`).
_MAX_TASK_ENTRIES = 1 << 20
#: Parameters that call or write in the user's process: fits with any of them do not run in tasks.
_CALLER_PARAMS = "callbacks", "checkpoint", "verbose"
#: Held by fits that catch warnings: `warnings.catch_warnings` changes the state of the whole
#: process, so only one thread of a worker may use it at a time.
_catching_warnings = threading.Lock()


def prepare_in_memory(
    X: Any, y: Any, params: dict[str, Any], *, labels: bool
) -> tuple[Any, Any, dict[str, Any]]:
    """Return X, y and the arguments of a fit to rows in memory; lazy targets are computed."""
    check_unique_names(X)
    check_given(y)
    if isinstance(y, str):
        X, y, _ = take_named_columns(X, y, None)
    if any(map(is_dask, (y, *params.values()))):
        y, params = compute(y, params)
    return X, (plain_labels(y) if labels else y), params


def check_given(y: Any) -> None:
    """Raise scikit-learn's error for a missing target."""
    if y is None:
        raise InvalidDataError("requires y to be passed, but the target y is None. Pass y as well.")


def plain_labels(y: Any) -> Any:
    """Return labels in memory in a form for scikit-learn: NumPy dtypes, none missing."""
    dtypes = list(getattr(y, "dtypes", [])) if is_dataframe_like(y) else [getattr(y, "dtype", None)]
    # Categorical and nullable pandas columns become arrays of their values.
    if hasattr(y, "iloc") and not all(isinstance(dtype, np.dtype) for dtype in dtypes):
        y = as_column(y)
        y = column_of(y, name="y") if hasattr(y, "iloc") else y
    if isinstance(y, list | tuple):
        y = convert_to_array(y, "y", None)
    if not isinstance(y, np.ndarray) and not is_series_like(y):
        return y
    check_no_missing(np.asarray(y), "y")
    if y.dtype.kind == "f" and not np.isfinite(np.asarray(y)).all():
        raise InvalidDataError("Input y contains NaN or infinity. Drop these rows.")
    return convert_extension_column(y)


def find_numpy_dtype(y: Any) -> np.dtype[Any]:
    """Return the dtype that a target's column has as an array; float64 for several columns."""
    dtype: np.dtype[Any] = getattr(y, "dtype", np.dtype(np.float64))
    if not isinstance(dtype, np.dtype):  # of a nullable or Arrow column
        dtype = column_of(getattr(y, "_meta", y)[:0], name="y").dtype
    return dtype


def prepare_lazy_inputs(X: Any, y: Any, params: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Return X, y and the arguments of a lazy fit; named columns are removed from X."""
    X, y, weight = take_named_columns(X, y, params.get("sample_weight"))
    check_given(y)
    params = {name: value for name, value in params.items() if name != "sample_weight"}
    return X, y, params if weight is None else {**params, "sample_weight": weight}


# --- fits ------------------------------------------------------------------------------------


def route_member_params(
    ensemble: Any, named_members: Sequence[tuple[str, Any]], params: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the arguments of each member's ``fit``: the weights, or the metadata routed to it."""
    if is_metadata_routing_enabled():
        with translate_parameter_errors():
            routed = process_routing(ensemble, "fit", **params)
        return [dict(routed[name]["fit"]) for name, _ in named_members]
    if unknown := sorted(set(params) - {"sample_weight"}):
        raise InvalidParameterError(
            f"fit of {type(ensemble).__name__} got {unknown}, but only supports sample_weight. "
            "Turn on scikit-learn's metadata routing for others."
        )
    check_weighable(named_members, params)
    return [dict(params) for _ in named_members]


def check_weighable(named_members: Sequence[tuple[str, Any]], params: dict[str, Any]) -> None:
    """Raise an error if weights are given but a member does not support them."""
    for name, member in named_members:
        if "sample_weight" in params and not has_fit_parameter(member, "sample_weight"):
            raise InvalidTypeError(
                f"Underlying estimator {name} ({type(member).__name__}) does not support sample "
                "weights. Leave them out, or use an estimator that takes them."
            )


def has_few_entries(X: Any, n_rows: int | None = None) -> bool:
    """Return whether X is known to be so small that one process fits it faster than several."""
    # Unknown sizes count as large: otherwise rows that do not fit into one process might be
    # gathered there. Dask DataFrames do not know their number of rows, lists of delayed blocks not
    # even their columns.
    n_known, *row_shape = getattr(X, "shape", None) or (None, math.inf)
    n = n_rows if n_rows is not None else n_known  # may be NaN, for unknown chunk sizes
    return isinstance(n, int | np.integer) and n * math.prod(row_shape) <= _MAX_TASK_ENTRIES


def _fits_in_task(member: Any, has_few_rows: bool) -> bool:
    """Return whether a member is fitted in one task, to rows that are gathered there.

    `has_few_rows` states whether there are few rows.
    """
    if not takes_dask_collections(member):
        return True
    # A frozen estimator is not fitted: gathering its rows would be useless.
    if not has_few_rows or isinstance(member, FrozenEstimator):
        return False
    if isinstance(member, Pipeline):
        return all(
            step == "passthrough" or _fits_in_task(step, has_few_rows) for _, step in member.steps
        )
    params = member.get_params(deep=False)
    # A meta-estimator (a search, an ensemble) fits its estimators in its own tasks.
    nested = any(hasattr(value, "fit") or isinstance(value, list) for value in params.values())
    needs_caller = any(params.get(name) for name in _CALLER_PARAMS)
    return not (nested or needs_caller or params.get("device") == "gpu")


def fit_members(
    jobs: Sequence[tuple[Any, Any, Any, dict[str, Any]]], has_few_rows: bool | None = None
) -> list[Any]:
    """Return fitted clones of estimators, one for each (estimator, X, y, params).

    Estimators that support Dask collections are fitted one after the other, each on the whole
    cluster. Others, and nearly all if there are few rows, are fitted in parallel tasks, to rows
    that are gathered there. `has_few_rows` states whether there are few rows; None:
    :func:`has_few_entries` decides for each X.
    """
    # By position, since tasks are computed together after the fits on the whole cluster.
    fitted, tasks, blocks = {}, {}, []
    for i, job in enumerate(jobs):
        if _fits_in_task(job[0], has_few_entries(job[1]) if has_few_rows is None else has_few_rows):
            member, X, y, params = job
            weight = params.get("sample_weight")
            rows = as_collection(X, y, weight, numeric=False, multi_output=True, any_shape=True)
            tasks[i] = _fit_task(member, rows, params)
            blocks += rows.parts
        else:
            report_phase("members", i, len(jobs), "fit")
            fitted[i] = fit_clone(*job)
    if tasks:
        report_phase(f"{len(tasks)} members as tasks")
        fitted.update(zip(tasks, _compute_fits(list(tasks.values()), blocks), strict=True))
    return [fitted[i] for i in range(len(jobs))]


def _compute_fits(tasks: list[Delayed], blocks: list[tuple[Any, ...]]) -> list[Any]:
    """Return the estimators that tasks fit, and repeat their warnings in this process."""
    # If blocks cannot be computed, the error names them.
    with name_blocks_in_errors(blocks):
        results = compute_together(tasks)
    # Each distinct warning once, in order, even if several fits gave it.
    for text, category in dict.fromkeys(warned for _, caught in results for warned in caught):
        warnings.warn(text, category, stacklevel=user_stack_level())
    return [fitted for fitted, _ in results]


def _fit_task(member: Any, rows: Collection, params: dict[str, Any]) -> Delayed:
    """Return a task that gathers rows and fits a clone of a member to them."""
    unweighted_params = {name: value for name, value in params.items() if name != "sample_weight"}
    # Lists of lazy blocks: Dask computes the arguments of a task before the task.
    columns = [list(blocks) for blocks in zip(*rows.parts, strict=True)]  # of X, y and weights
    task: Delayed = delayed(partial(_fit_gathered, unweighted_params), pure=False)(member, *columns)
    return task


def _fit_gathered(
    unweighted_params: dict[str, Any], member: Any, X: Any, y: Any, weight: Any
) -> Any:
    """Return `_fit_catching_warnings` of rows that are joined from lists of blocks."""
    params = dict(unweighted_params)
    if weight[0] is not None:
        sizes = zip(weight, map(count_rows_of_block, X), strict=True)
        params["sample_weight"] = join_blocks(
            [expand_weights(block_weights, n) for block_weights, n in sizes]
        )
    y = None if y[0] is None else join_blocks(y)
    return _fit_catching_warnings(member, join_blocks(X), y, params)


def _fit_fold(splits_params: Callable[..., dict[str, Any]], member: Any, sides: Any) -> Any:
    """Return `_fit_catching_warnings` of the training side of a split, the first of `sides`."""
    (X, y, *cut), _ = sides
    return _fit_catching_warnings(member, X, y, splits_params(cut))


def _fit_catching_warnings(
    member: Any, X: Any, y: Any, params: dict[str, Any]
) -> tuple[Any, list[tuple[str, type[Warning]]]]:
    """Return a fitted clone, and the warnings of its fit, which the caller's process repeats."""
    if not takes_dask_collections(member):
        # Fits of other packages may take long, and would wait for each other at the lock.
        return mark_own_errors(fit_clone, member, X, y, params), []
    with _catching_warnings, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = mark_own_errors(fit_clone, member, X, y, params)
    return fitted, [(str(warning.message), warning.category) for warning in caught]


def copy_feature_attributes(fitted: Any, member: Any) -> None:
    """Set the number and names of features of `fitted` to those of a member, or remove them."""
    for name in ("n_features_in_", "feature_names_in_"):
        fitted.__dict__.pop(name, None)
        if hasattr(member, name):
            setattr(fitted, name, getattr(member, name))


def fit_folds(member: Any, splits: Splits, has_few_rows: bool | None = None) -> list[Any]:
    """Return clones of an estimator fitted to the training rows of each split.

    This is one batched fit if the estimator's solver supports it, or one task for each clone if
    there are few rows; `has_few_rows` is as in :func:`fit_members`.
    """
    has_few_rows = has_few_entries(splits.inputs[0]) if has_few_rows is None else has_few_rows
    # Rows in memory are fitted here; a task would only send them to a worker and back.
    is_lazy = splits.codes is None
    if is_lazy and takes_dask_collections(member) and _fits_in_task(member, has_few_rows):
        fit = delayed(
            partial(_fit_fold, partial(merge_fit_params, splits.plain, splits.cut)), pure=False
        )
        tasks = [fit(member, splits.rows.gather_split(split)) for split in range(splits.n_splits)]
        report_phase(f"{len(tasks)} fits as tasks")
        return _compute_fits(tasks, splits.rows.columns.parts)
    # None: no solver can train these together, so they are fitted split by split.
    batched = fit_batched([clone(member)], splits, {}, {}, train_score=False, error_score="raise")
    if batched is None:
        fits = splits.fit_splits([member], {}, train_score=False, error_score="raise")
    else:
        fits, _ = batched
    return [fit.estimator for fit in fits[0]]


# --- labels of lazy targets --------------------------------------------------------------------


def find_labels(y: Any) -> NDArray[Any]:
    """Return the sorted labels, found in one pass over a Dask collection."""
    return count_labels(y)[0]


def count_labels(y: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the sorted labels and how many rows have each, in one pass."""
    if not is_dask(y):
        with explain_unsortable_labels("y"):
            column = convert_object_values(np.asarray(y))
            labels, counts = np.unique(column, return_counts=True)
        return check_class_labels(labels), counts
    # Passes read blocks of two-dimensional rows, so the targets are also passed as the rows.
    table = y.to_frame("y") if is_series_like(y) else y
    if getattr(table, "ndim", 2) == 1:
        table = table[:, np.newaxis]
    columns = as_collection(table, y, numeric=False, classification=True)
    labels, counts = reduce_parts(columns, _count_block_labels, _merge_label_counts)
    return check_class_labels(labels), counts


def _count_block_labels(
    index: int, X: Any, y: Any, weight: Any
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the sorted labels of a block, and how many rows have each."""
    column = column_of(y, name="y", index=index)
    check_no_missing(column, "y", index)
    with explain_unsortable_labels("y", index):
        labels, counts = np.unique(column, return_counts=True)
    return labels, counts


def _merge_label_counts(
    block_counts: list[tuple[NDArray[Any], NDArray[Any]]],
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the sorted labels of all blocks, and how many rows have each."""
    block_labels, block_rows = zip(*block_counts, strict=True)
    labels, codes = merge_block_labels(block_labels, "y")
    counts = np.bincount(codes, np.concatenate(block_rows), len(labels))
    return labels, counts.astype(np.int64)


def check_indicators(y: Any) -> int:
    """Check that y is a multilabel indicator matrix, and return its number of columns."""
    if is_dask(y):
        values = reduce_parts(
            as_collection(y, None, numeric=False), _find_block_values, _merge_values
        )
    else:
        values = np.unique(np.asarray(y))
    if not_indicators := sorted(set(values.tolist()) - {0, 1}):
        raise InvalidDataError(
            f"y has {y.shape[1]} columns, and holds {not_indicators[:5]}. Of several labels a row, "
            "give a column of 0 and 1 for each; of one label, one column."
        )
    return int(y.shape[1])


def _find_block_values(index: int, X: Any, y: Any, weight: Any) -> NDArray[Any]:
    return np.unique(np.asarray(X))


def _merge_values(block_values: list[NDArray[Any]]) -> NDArray[Any]:
    return np.unique(np.concatenate(block_values))


def encode_labels(y: Any, classes: NDArray[Any]) -> Any:
    """Return the positions of labels among the sorted `classes`; lazy if y is lazy."""
    if is_dask_frame(y):
        column = y if is_series_like(y) else y[y.columns[0]]
        return column.map_partitions(_encode_series, classes, meta=(column.name, np.int64))
    if is_dask(y):
        return y.map_blocks(_encode_array, classes, dtype=np.int64, meta=np.empty(0, np.int64))
    return _encode_array(np.asarray(y), classes)


def _encode_array(labels: Any, classes: NDArray[Any]) -> NDArray[np.int64]:
    return np.searchsorted(classes, np.asarray(labels)).astype(np.int64)


def _encode_series(labels: Any, classes: NDArray[Any]) -> Any:
    import pandas

    return pandas.Series(_encode_array(labels, classes), labels.index, name=labels.name)
