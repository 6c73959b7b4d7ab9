"""Members of ensembles: fits of others to rows of Dask collections, and what they say of these."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.base import compute
from dask.delayed import Delayed, delayed
from dask.utils import is_dataframe_like, is_series_like
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.metadata_routing import process_routing
from sklearn.utils.validation import has_fit_parameter

from daskml_dist.data.block_errors import mark_own_errors, name_blocks_in_errors
from daskml_dist.data.collection import Collection, as_collection, take_named_columns
from daskml_dist.data.computing import compute_with_retries
from daskml_dist.data.conversion import as_column as column_of
from daskml_dist.data.conversion import check_unique_names, convert_object_values, take_rows
from daskml_dist.data.lazy import is_dask
from daskml_dist.diagnostics.works import tell
from daskml_dist.errors import (
    InvalidDataError,
    InvalidParameterError,
    InvalidTypeError,
)
from daskml_dist.errors.sklearn_errors import translate_parameter_errors
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.base import as_column
from daskml_dist.inference.block_mapping import share_in_graph
from daskml_dist.model_selection._batched_fits import fit_batched
from daskml_dist.model_selection._fold_rows import (
    TEST,
    RowsOfSplits,
    count_rows_of_block,
    join_blocks,
)
from daskml_dist.model_selection._validation import (
    Splits,
    fit_clone,
    merge_fit_params,
    takes_dask_collections,
)
from daskml_dist.sklearn_internals import is_metadata_routing_enabled

__all__ = [
    "OutOfFold",
    "as_array",
    "check_given",
    "check_weighable",
    "fit_folds",
    "fit_members",
    "has_few_entries",
    "here",
    "params_of",
    "plain_labels",
    "taken",
    "weights_of_rows",
]

#: Entries of X up to which a member is fitted in one task, on all rows: to start a fit on several
#: processes, and their meetings, take longer than the arithmetic (`benchmarks/break_even.py`).
_FEW_ENTRIES = 1 << 20
#: Parameters that a fit in another process cannot keep to: they speak to the caller.
_OF_THE_CALLER = "callbacks", "checkpoint", "verbose"
#: Python's record of warnings belongs to the process: threads take turns.
_recording_warnings = threading.Lock()


def here(
    X: Any, y: Any, params: dict[str, Any], *, labels: bool
) -> tuple[Any, Any, dict[str, Any]]:
    """Rows, targets and arguments of a fit to rows in memory, where they fit too."""
    check_unique_names(X)
    check_given(y)
    if isinstance(y, str):
        X, y, _ = take_named_columns(X, y, None)
    if any(map(is_dask, (y, *params.values()))):
        y, params = compute(y, params)
    return X, (plain_labels(y) if labels else y), params


def check_given(y: Any) -> None:
    """Check that there is a target, where one is needed."""
    if y is None:
        raise InvalidDataError("requires y to be passed, but the target y is None. Pass y as well.")


def plain_labels(y: Any) -> Any:
    """Labels in memory as scikit-learn takes them: of NumPy's dtypes, and none missing."""
    dtypes = list(getattr(y, "dtypes", [])) if is_dataframe_like(y) else [getattr(y, "dtype", None)]
    if hasattr(y, "iloc") and not all(isinstance(dtype, np.dtype) for dtype in dtypes):
        y = as_column(y)
        y = column_of(y, name="y") if hasattr(y, "iloc") else y
    if not isinstance(y, np.ndarray) and not is_series_like(y):
        return y
    if y.dtype.kind == "f" and not np.isfinite(np.asarray(y)).all():
        raise InvalidDataError("Input y contains NaN or infinity. Drop these rows.")
    return convert_object_values(y) if isinstance(y, np.ndarray) and y.ndim == 1 else y


def taken(X: Any, y: Any, params: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Inputs of a fit, with columns for the names of these; weights that are None are left out."""
    X, y, weight = take_named_columns(X, y, params.get("sample_weight"))
    check_given(y)
    params = {name: value for name, value in params.items() if name != "sample_weight"}
    return X, y, params if weight is None else {**params, "sample_weight": weight}


# --- fits ------------------------------------------------------------------------------------


def params_of(
    ensemble: Any, named: Sequence[tuple[str, Any]], params: dict[str, Any]
) -> list[dict[str, Any]]:
    """Arguments of the ``fit`` of each member: weights, or what metadata routing sends it."""
    if is_metadata_routing_enabled():
        with translate_parameter_errors():
            routed = process_routing(ensemble, "fit", **params)
        return [dict(routed[name]["fit"]) for name, _ in named]
    if strange := sorted(set(params) - {"sample_weight"}):
        raise InvalidParameterError(
            f"fit of {type(ensemble).__name__} got {strange}, and knows sample_weight alone. Turn "
            "on scikit-learn's metadata routing for others."
        )
    check_weighable(named, params)
    return [dict(params) for _ in named]


def check_weighable(named: Sequence[tuple[str, Any]], params: dict[str, Any]) -> None:
    """Check that members take the weights of rows, if there are any."""
    for name, member in named:
        if "sample_weight" in params and not has_fit_parameter(member, "sample_weight"):
            raise InvalidTypeError(
                f"Underlying estimator {name} ({type(member).__name__}) does not support sample "
                "weights. Leave them out, or use an estimator that takes them."
            )


def has_few_entries(X: Any, n_rows: int | None = None) -> bool:
    """Return whether a Dask collection is known to be so small that one process should fit it."""
    # Frames do not know their rows, and lists of delayed blocks not even their columns.
    n_known, *row_shape = getattr(X, "shape", None) or (None, math.inf)
    n = n_rows if n_rows is not None else n_known
    return isinstance(n, int | np.integer) and n * math.prod(row_shape) <= _FEW_ENTRIES


def _fits_in_task(member: Any, few: bool) -> bool:
    """Return whether a member is fitted in one task, on rows that are gathered there."""
    if not takes_dask_collections(member):
        return True
    if not few or isinstance(member, FrozenEstimator):
        return False
    if isinstance(member, Pipeline):
        return all(step == "passthrough" or _fits_in_task(step, few) for _, step in member.steps)
    params = member.get_params(deep=False)
    # An estimator of other estimators (a search, an ensemble) fits them by tasks of its own.
    nested = any(hasattr(value, "fit") or isinstance(value, list) for value in params.values())
    to_caller = any(params.get(name) for name in _OF_THE_CALLER)
    return not (nested or to_caller or params.get("device") == "gpu")


def fit_members(
    jobs: Sequence[tuple[Any, Any, Any, dict[str, Any]]], few: bool | None = None
) -> list[Any]:
    """Fit clones of estimators, each to rows and with arguments of its own.

    Those that know Dask collections are fitted one after the other, each on the whole cluster;
    others, and all where rows are few, as tasks side by side, on rows gathered there.
    """
    found, tasks, blocks = {}, {}, []
    for i, job in enumerate(jobs):
        if _fits_in_task(job[0], has_few_entries(job[1]) if few is None else few):
            member, X, y, params = job
            weight = params.get("sample_weight")
            rows = as_collection(X, y, weight, numeric=False, multi_output=True, any_shape=True)
            tasks[i] = _fit_task(member, rows, params)
            blocks += rows.parts
        else:
            tell("members", i, len(jobs), "fit")
            found[i] = fit_clone(*job)
    if tasks:
        tell(f"{len(tasks)} members as tasks")
        found.update(zip(tasks, _computed(list(tasks.values()), blocks), strict=True))
    return [found[i] for i in range(len(jobs))]


def _computed(tasks: list[Delayed], blocks: list[tuple[Any, ...]]) -> list[Any]:
    """Return what tasks fit, and repeat their warnings; errors name the block that has none."""
    with name_blocks_in_errors(blocks):
        made = compute_with_retries(lambda _: delayed(list, pure=False)(tasks))
    for text, category in dict.fromkeys(one for _, found in made for one in found):
        warnings.warn(text, category, stacklevel=user_stack_level())
    return [fitted for fitted, _ in made]


def _fit_task(member: Any, rows: Collection, params: dict[str, Any]) -> Delayed:
    plain = {name: value for name, value in params.items() if name != "sample_weight"}
    columns = [list(of) for of in zip(*rows.parts, strict=True)]
    task: Delayed = delayed(partial(_fit_here, plain), pure=False)(member, *columns)
    return task


def _fit_here(plain: dict[str, Any], member: Any, X: Any, y: Any, weight: Any) -> Any:
    """Fit a clone to rows that are gathered from the blocks."""
    params = dict(plain)
    if weight[0] is not None:
        each = zip(weight, map(count_rows_of_block, X), strict=True)
        params["sample_weight"] = join_blocks([weights_of_rows(own, n) for own, n in each])
    y = None if y[0] is None else join_blocks(y)
    return _fit_recorded(member, join_blocks(X), y, params)


def _fit_fold(splits_params: Callable[..., dict[str, Any]], member: Any, sides: Any) -> Any:
    """Fit a clone to the training rows of a split, which are gathered."""
    (X, y, *cut), _ = sides
    return _fit_recorded(member, X, y, splits_params(cut))


def _fit_recorded(
    member: Any, X: Any, y: Any, params: dict[str, Any]
) -> tuple[Any, list[tuple[str, type[Warning]]]]:
    """Return a fitted clone, and the warnings of its fit, which the caller's process repeats."""
    if not takes_dask_collections(member):
        # Such fits are not short, and a worker's threads make several at once.
        return mark_own_errors(fit_clone, member, X, y, params), []
    with _recording_warnings, warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fitted = mark_own_errors(fit_clone, member, X, y, params)
    return fitted, [(str(one.message), one.category) for one in found]


def weights_of_rows(weight: Any, n_rows: int) -> Any:
    """Return the weights of a block's rows, of which one number is that of each."""
    return np.full(n_rows, weight) if np.ndim(weight) == 0 else weight


def fit_folds(member: Any, splits: Splits, few: bool | None = None) -> list[Any]:
    """Fit clones of an estimator to the training rows of each split; one fit where that can be.

    Where rows are few, each clone is fitted in a task; `few` is as of :func:`fit_members`.
    """
    few = has_few_entries(splits.inputs[0]) if few is None else few
    if takes_dask_collections(member) and _fits_in_task(member, few):
        fit = delayed(
            partial(_fit_fold, partial(merge_fit_params, splits.plain, splits.cut)), pure=False
        )
        tasks = [fit(member, splits.rows.gather_split(split)) for split in range(splits.n_splits)]
        tell(f"{len(tasks)} fits as tasks")
        return _computed(tasks, splits.rows.columns.parts)
    found = fit_batched([clone(member)], splits, {}, {}, train_score=False, error_score="raise")
    if found is None:
        fits = splits.fits([member], {}, train_score=False, error_score="raise")
    else:
        fits, _ = found
    return [fit.estimator for fit in fits[0]]


# --- what members say of rows that they have not seen ----------------------------------------


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """Answers of members about rows, each by the fit that has not seen the row. Picklable.

    Parameters
    ----------
    fits : list of list of estimator
        Of each member, one a split.
    methods : list of str
        Of the members.
    n_classes : int or None
        Of the targets, which are numbered; None for regression.
    """

    fits: list[list[Any]]
    methods: list[str]
    n_classes: int | None

    def of_rows(self, X: Any) -> list[NDArray[Any]]:
        """Answers of the first fits."""
        each = zip(self.fits, self.methods, strict=True)
        return [_in_order(fits[0], method, X, self.n_classes) for fits, method in each]

    def blocks(self, rows: RowsOfSplits, then: Any) -> list[Delayed]:
        """``then(X, answers)`` of each block, lazy."""
        make = delayed(partial(_out_of_fold, rows.roles), pure=False)
        once = share_in_graph(partial(_both, self, then))
        return [
            make(once, X, codes)
            for (X, _, _), codes in zip(rows.columns.parts, rows.code_parts, strict=True)
        ]


def _both(own: OutOfFold, then: Any) -> tuple[OutOfFold, Any]:
    return own, then


def _out_of_fold(roles: Any, both: Any, X: Any, codes: NDArray[np.int64]) -> Any:
    own, then = both()
    if not count_rows_of_block(X):
        return then(X, [])
    played = np.array([roles.played(codes, split) == TEST for split in range(roles.n_splits)])
    if not (played.sum(axis=0) == 1).all():
        raise InvalidDataError(
            "cross_val_predict only works for partitions: every row must be in the test rows of "
            "one split. Use KFold, StratifiedKFold or GroupKFold as cv."
        )
    found: list[Any] = []
    for fits, method in zip(own.fits, own.methods, strict=True):
        out: Any = None
        for at, fitted in zip(played, fits, strict=True):
            if not at.any():
                continue
            rows = take_rows(X, np.flatnonzero(at))
            answers = _in_order(fitted, method, rows, own.n_classes)
            several = answers if isinstance(answers, list) else [answers]
            if out is None:
                out = [np.empty((len(codes), *one.shape[1:]), one.dtype) for one in several]
            for whole, one in zip(out, several, strict=True):
                whole[at] = one
        found.append(out if isinstance(answers, list) else out[0])
    return then(X, found)


def _in_order(fitted: Any, method: str, X: Any, n_classes: int | None) -> Any:
    """Answers with a column for every class, of a fit that may not have met all.

    Of several labels a row a list of those of each, from estimators that answer so.
    """
    given = getattr(fitted, method)(X)
    if isinstance(given, list):
        return [np.asarray(one) for one in given]
    answers = np.asarray(given)
    known = np.asarray(getattr(fitted, "classes_", ()))
    if n_classes is None or method == "predict" or len(known) == n_classes:
        return answers
    if answers.ndim == 1:
        raise InvalidDataError(
            f"{method} of a split's training rows knows {len(known)} of {n_classes} labels. Use "
            "StratifiedKFold, or fewer folds."
        )
    none = 0.0 if method == "predict_proba" else np.finfo(answers.dtype).min
    out = np.full((len(answers), n_classes), none, answers.dtype)
    out[:, known.astype(np.int64)] = answers
    return out


def as_array(pieces: Sequence[Delayed], rows: Collection, sample: Any) -> da.Array:
    """Lazy array of a block for each block of a collection; `sample` is some rows of it."""
    counts: Any = rows.row_counts or [np.nan] * len(rows.parts)
    meta = sample[:0] if sparse.issparse(sample) else np.asarray(sample)[:0]
    array: da.Array = da.concatenate(
        [
            da.from_delayed(piece, (n, *meta.shape[1:]), dtype=meta.dtype, meta=meta)
            for piece, n in zip(pieces, counts, strict=True)
        ]
    )
    return array
