"""Splits of rows for cross-validation, and fits and scores of estimators on both sides of each.

A split has two sides, training and test rows. `Splits` assigns the rows of arrays in memory or of
Dask collections to the sides once, for any number of fits (`Splits.fits`), each of which results in
a `SplitFit`. Rows in memory are selected by their numbers, as in scikit-learn. Rows of a Dask
collection get an integer code each (`_fold_rows.py`), from which every task derives the sides of
its own block, so that no row is moved and the client never holds row numbers.

This module also checks the arguments of cross-validation, reports failed fits, and implements
scikit-learn's metadata routing.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral, Number, Real
from typing import Any

import numpy as np
from dask.base import compute
from dask.delayed import delayed
from dask.sizeof import sizeof
from numpy.typing import NDArray
from scipy import sparse
from sklearn import get_config, model_selection
from sklearn.base import clone, is_classifier
from sklearn.exceptions import FitFailedWarning
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags, resample
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing

from daskml_dist.dask_internals.cluster import is_dask_error, list_workers
from daskml_dist.data.collection import (
    Collection,
    as_collection,
    count_rows_of_block,
    take_named_columns,
)
from daskml_dist.data.computing import flush_releases, get_computing_client
from daskml_dist.data.conversion import convert_foreign
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import PassGenerator, concatenate_lists, count_rows, reduce_parts
from daskml_dist.data.row_checks import explain_unsortable_labels
from daskml_dist.diagnostics.operation_progress import report_phase, report_reading
from daskml_dist.errors import (
    DaskMLDistError,
    InvalidDataError,
    InvalidParameterError,
    TrainingError,
)
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.inference.block_mapping import current_client
from daskml_dist.model_selection import _splitters
from daskml_dist.model_selection._fold_rows import (
    DigitRoles,
    GivenCodes,
    RowsOfSplits,
    TableRoles,
    TrainedRows,
    count_labels_by_block,
    count_training_rows,
    thin_rows,
)
from daskml_dist.model_selection._splitters import DaskSplitter, KFold, StratifiedKFold
from daskml_dist.models.batched import NEITHER, TEST, TRAIN, FoldAssignment, SingleSplitAssignment
from daskml_dist.parameters.checks import seed_of
from daskml_dist.sklearn_internals import take_rows_or_columns

#: Share of the workers' memory that the rows of a search may use for all of its fits. The running
#: fit has its own copies, up to `Run.memory_budget`, and Dask spills from 0.6 of the memory.
_KEPT_MEMORY_SHARE = 0.2
#: At most one in this number of blocks is measured before rows are kept: the measurement reads it
#: from the source, in addition to the fits.
_BLOCKS_PER_SAMPLE = 4


@dataclass(eq=False)
class SplitFit:
    """Result of one fit on the training rows of a split.

    Parameters
    ----------
    test, train : dict of str to float
        Scores by name; `train` is empty unless it was requested.
    fit_time, score_time : float
        Seconds.
    estimator : estimator or None
        Fitted; None if the fit failed.
    error : str or None
        Message of the failure.
    """

    test: dict[str, float]
    train: dict[str, float] = field(default_factory=dict)
    fit_time: float = 0.0
    score_time: float = 0.0
    estimator: Any = None
    error: str | None = None

    @classmethod
    def from_failure(
        cls, names: Iterable[str], train_score: bool, error_score: Any, seconds: float, text: str
    ) -> SplitFit:
        """Return the result of a failed fit, whose scores are all `error_score`."""
        scores = dict.fromkeys(names, float(error_score))
        return cls(scores, dict(scores) if train_score else {}, seconds, error=text)

    @classmethod
    def warn_failure(
        cls, error: Exception, subject: str, names: Iterable[str], train_score: bool,
        error_score: Any, seconds: float,
    ) -> SplitFit:  # fmt: skip
        """Warn of a failed fit and return its result; raise the error if error_score="raise"."""
        if error_score == "raise":
            raise error
        text = (
            f"{subject} failed, and its scores are {error_score}. Use error_score='raise' to see "
            f"where. ({type(error).__name__}: {error})"
        )
        warnings.warn(text, FitFailedWarning, stacklevel=user_stack_level())
        return cls.from_failure(names, train_score, error_score, seconds, text)


class Splits:
    """Rows cut for cross-validation once, for any number of fits.

    Parameters
    ----------
    estimator : estimator
    X, y, groups : Dask collections, or rows in memory; None where absent
        `y` may name a column of X.
    fit_params : dict
        Arguments of ``fit``; those with a value for each row are split like X.
    cv
        As in :func:`cross_validate`.

    Attributes
    ----------
    inputs : tuple
        X, y, and the arguments of ``fit`` that are split: `sample_weight` first, if given.
    cut : tuple of str
        Names of the arguments of ``fit`` that are split, in the order of `inputs`.
    plain : dict
        Arguments of ``fit`` that every fit gets unchanged.
    by_roles : bool
        Whether every row is at most once on one side of a split, so that `roles` and `codes`
        describe the splits. Always True for Dask collections; False, for example, for rows in
        memory that a bootstrap draws several times.
    roles : FoldAssignment
        Side of each code in each split.
    codes : ndarray of int64 of shape (n_rows,), or None
        Codes of rows in memory; None for Dask collections, whose codes `rows` makes.
    n_splits : int
    trained : TrainedRows or None
        Numbers of training rows of the splits; None until they are counted.
    """

    trained: TrainedRows | None = None

    def __init__(
        self, estimator: Any, X: Any, y: Any, groups: Any, fit_params: dict[str, Any], cv: Any
    ) -> None:
        # 1. The inputs that are split like X, and the arguments of fit that are not.
        X, y, weight = take_named_columns(X, y, fit_params.get("sample_weight"))
        params = {**fit_params, "sample_weight": weight} if weight is not None else dict(fit_params)
        names = [name for name, value in params.items() if _has_value_per_row(name, value, X)]
        names.sort(key="sample_weight".__ne__)  # False sorts first
        self.cut = tuple(names)
        self.inputs: tuple[Any, ...] = X, y, *(params.pop(name) for name in names)
        self.plain = params
        self.by_roles = True
        # 2. The splits: codes and roles of lazy rows, or row numbers of rows in memory.
        check_target(estimator, y)
        splitter = check_splitter(cv, estimator, y)
        self._rows: RowsOfSplits | None = None
        self.codes: Any = None
        if any(map(is_dask, (*self.inputs, groups))):
            # Raises for the client of an event loop, for which this function cannot wait.
            get_computing_client("cross-validation")
            self._rows = _assign_folds(splitter, self.inputs, y, groups)
            self.roles: FoldAssignment = self._rows.roles
        else:
            self.indices = _list_splits(splitter, X, y, groups)
            self._encode_indices()
        self.n_splits = self.roles.n_splits

    def _encode_indices(self) -> None:
        """Set the codes of rows in memory; all 0 if codes cannot describe the splits."""
        n_rows = count_rows_of_block(self.inputs[0])
        self.by_roles = _have_one_role_each(self.indices, n_rows)
        if self.by_roles:
            self.codes, self.roles = _encode_splits(self.indices, n_rows)
        else:
            # Then only fits split by split are possible, and these select rows by `indices`.
            self.codes = np.zeros(n_rows, np.int64)
            self.roles = TableRoles(np.full((1, len(self.indices)), NEITHER, np.int8))

    @property
    def rows(self) -> RowsOfSplits:
        """Return the rows of Dask collections with their codes; not for rows in memory."""
        assert self._rows is not None
        return self._rows

    @property
    def can_batch(self) -> bool:
        """Return whether a batched fit supports these splits and all arguments of ``fit``."""
        return self.by_roles and not {*self.plain, *self.cut} - {"sample_weight"}

    def select_side(self, split: int, role: int) -> tuple[Any, Any, dict[str, Any]]:
        """Return the rows, targets and arguments of ``fit`` of one side (TRAIN or TEST) of a split.

        Lazy if the inputs are.
        """
        if self._rows is not None:
            X, y, *cut = self._rows.take_side(split, role)
        else:
            row_numbers = self.indices[split][0 if role == TRAIN else 1]
            X, y, *cut = (
                None if value is None else take_rows_or_columns(value, row_numbers)
                for value in self.inputs
            )
        return X, y, self.make_params(cut)

    def make_params(self, cut: Sequence[Any]) -> dict[str, Any]:
        """Return the arguments of ``fit``, given the values of those that are split."""
        return merge_fit_params(self.plain, self.cut, cut)

    def count_rows(self) -> int:
        """Return the number of rows of X, in one pass if Dask does not know it."""
        if self.codes is not None:
            return count_rows_of_block(self.inputs[0])
        return int(count_rows(self.rows.columns).sum())

    def find_labels(self) -> NDArray[Any]:
        """Return the sorted labels of the targets, in one pass over them if they are lazy."""
        X, y, *_ = self.inputs
        if self.codes is not None:
            with explain_unsortable_labels("y"):
                return np.unique(np.asarray(y))
        columns = as_collection(X, y, numeric=False, classification=True, any_shape=True)
        try:
            labels, _ = count_labels_by_block(columns, first_seen=False)
        except DaskMLDistError:
            raise
        except Exception as error:
            raise self.rows.make_unread_error(error) from error
        return labels

    def count_trained(self, classification: bool) -> PassGenerator[TrainedRows]:
        """Count the training rows of each split; for a classifier by their labels."""
        y = self.inputs[1]
        if self._rows is None:
            work = count_training_rows("memory", [(y, self.codes)], self.roles, classification)
        else:
            parts = self.rows.pair_with_codes(y)
            work = count_training_rows("dask", parts, self.roles, classification)
        return (yield from work)

    def thin(self, fraction: float, random_state: Any) -> Splits:
        """Return splits of a random share of the training and of the test rows of each split.

        For rows in memory those that scikit-learn's halving draws. For Dask collections each block
        contributes its share; a larger share contains a smaller one, except for about one row in
        each block, due to the rounding of shares.
        """
        thinned = copy.copy(self)
        if self.codes is None:
            thinned._rows = thin_rows(self.rows, fraction, seed_of(random_state))
            thinned.roles = thinned._rows.roles
            return thinned
        draw = partial(resample, replace=False, random_state=random_state)
        indices = [
            tuple(draw(side, n_samples=int(fraction * len(side))) for side in split)
            for split in self.indices
        ]
        # Batched fits pass over all rows of the inputs on any side. If at most half of the rows are
        # drawn, these are copied, so that no fit reads the others.
        used_rows = np.unique(np.concatenate([side for split in indices for side in split]))
        if 2 * len(used_rows) <= self.count_rows():
            thinned.inputs = tuple(
                None if value is None else take_rows_or_columns(value, used_rows)
                for value in self.inputs
            )
            indices = [
                tuple(np.searchsorted(used_rows, side) for side in split) for split in indices
            ]
        thinned.indices = indices
        thinned._encode_indices()
        return thinned

    @contextmanager
    def persist_rows(self) -> Iterator[Splits]:
        """Persist lazy rows on the cluster during a ``with`` statement, if they fit into memory.

        Each fit and each score reads the rows of its side, without this from the source every time.
        """
        client = current_client() if is_dask(self.inputs[0]) else None
        if client is None:
            yield self
            return
        # Imported here, so that searches of rows in memory never import distributed.
        from distributed import futures_of

        if futures_of(self.inputs[0]):  # the user has persisted the rows
            yield self
            return
        workers = list_workers(client).values()
        limits = (float(facts["memory_limit"] or np.inf) for facts in workers)  # 0: no limit
        max_bytes = _KEPT_MEMORY_SHARE * sum(limits)
        columns = self.rows.columns
        # Sizes are estimated from a sample spread over the collection, before any block is kept:
        # one block for each thread, which takes as long as a single block, but only a share of the
        # blocks.
        n_threads = sum(int(facts["nthreads"]) for facts in workers)
        step = max(-(-len(columns.parts) // max(n_threads, 1)), _BLOCKS_PER_SAMPLE)
        sample = columns.parts[::step]
        with report_reading("the first rows"):
            n_bytes = _count_all_bytes(replace(columns, parts=sample))
        if n_bytes / len(sample) * len(columns.parts) > max_bytes:
            yield self
            return
        persisted = copy.copy(self)
        persisted._rows = self.rows.persist_rows()
        persisted.inputs = persisted._rows.inputs
        futures = futures_of((persisted.inputs, persisted._rows.columns.parts))
        try:
            # The sample may have missed the large blocks. Counting also waits for the rows.
            with report_reading("the rows"):
                has_room = _count_all_bytes(persisted._rows.columns) <= max_bytes
            if has_room:
                yield persisted
                return
        finally:
            # Released at once: Python may collect the search's cycles of references much later.
            for future in futures:
                future.release()
            flush_releases(client)
        yield self

    def take_split(self, split: int, X: Any) -> Splits:
        """Return one of the splits, with X replaced by transformed rows."""
        single_split = copy.copy(self)
        single_split.inputs, single_split.n_splits = (X, *self.inputs[1:]), 1
        weights = None if self.trained is None else self.trained.weights[[split]]
        single_split.roles = SingleSplitAssignment(self.roles, split, weights)
        if self._rows is not None:
            single_split._rows = self._rows.with_features(X, single_split.roles)
        else:
            single_split.indices = [self.indices[split]]
        return single_split

    def fit_splits(
        self, estimators: Sequence[Any], scorers: dict[str, Any], *, train_score: bool,
        error_score: Any, weigh_scores: bool = False,
    ) -> list[list[SplitFit]]:  # fmt: skip
        """Fit clones of estimators on the training rows of each split, and score them.

        Estimators that accept Dask collections are fitted one after the other, each on the whole
        cluster; others in parallel tasks, each on rows that are gathered on one worker.
        `weigh_scores` determines whether scorers also get the weights of rows.
        """
        options = {
            "train_score": train_score, "error_score": error_score, "is_weighted": weigh_scores
        }  # fmt: skip
        # In this order the results are cut into a list for each estimator below.
        jobs = [(e, split) for e in estimators for split in range(self.n_splits)]
        if self._rows is None or all(map(takes_dask_collections, estimators)):
            fits: list[SplitFit] = []
            with self.persist_rows() as splits:
                for e, split in jobs:
                    report_phase("fits", len(fits), len(jobs))
                    train = splits.select_side(split, TRAIN)
                    test = partial(splits.select_side, split, TEST)
                    fits.append(_fit_and_score(e, train, test, scorers, **options))
        else:
            # Both sides of a split are gathered by one task, whose result all estimators share.
            rows = [self.rows.gather_split(split) for split in range(self.n_splits)]
            params = partial(merge_fit_params, self.plain, self.cut)
            task = delayed(partial(_fit_gathered, params, scorers, options), pure=False)
            report_phase(f"{len(jobs)} fits as tasks")
            fits = self._compute_fits([task(e, rows[split]) for e, split in jobs])
        _report_failures([fit.error for fit in fits], error_score)
        n = self.n_splits
        return [fits[i : i + n] for i in range(0, len(fits), n)]

    def fit_to_all_rows(self, estimator: Any, fit: Callable[..., Any] | None = None) -> Any:
        """Return a clone of an estimator, fitted to the rows of all splits, in a task if need be.

        `fit` replaces :func:`fit_clone`, and has its arguments.
        """
        fit = fit_clone if fit is None else fit
        if self._rows is None or takes_dask_collections(estimator):
            X, y, *cut = self.inputs
            return fit(estimator, X, y, self.make_params(cut))
        # Gathered like the rows of the splits: other packages would turn a lazy frame into an
        # array, without its names and categories.
        params = partial(merge_fit_params, self.plain, self.cut)
        task = delayed(partial(_fit_to_gathered_rows, params, fit), pure=False)
        (fitted,) = self._compute_fits([task(estimator, self.rows.gather_rows())])
        return fitted

    def _compute_fits(self, tasks: list[Any]) -> list[Any]:
        """Return the results of tasks, or raise the first error that one of them returned."""
        # Fits return their errors, so an error of `compute` is one of the cluster or of the rows.
        try:
            results = list(compute(*tasks))
        except Exception as error:
            if is_dask_error(error):
                raise TrainingError(
                    f"Tasks of fits were lost: {error} Give the workers more memory, or find out "
                    "why they die, then fit again."
                ) from error
            raise self.rows.make_unread_error(error) from error
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results


def _count_all_bytes(columns: Collection) -> int:
    return int(np.sum(reduce_parts(columns, _count_block_bytes, concatenate_lists)))


def _count_block_bytes(index: int, X: Any, *targets_and_weights: Any) -> list[int]:
    # Targets and weights are small compared with X.
    return [int(sizeof(X))]


# --- one fit and its scores --------------------------------------------------------------------


def _fit_gathered(
    params: Callable[..., dict[str, Any]], scorers: dict[str, Any], options: dict[str, Any],
    estimator: Any, rows: tuple[tuple[Any, ...], tuple[Any, ...]],
) -> SplitFit | Exception:  # fmt: skip
    """Return the scores of a fit on gathered rows, or the error that it raised."""
    train, test = ((X, y, params(cut)) for X, y, *cut in rows)
    try:
        return _fit_and_score(estimator, train, lambda: test, scorers, **options)
    except Exception as error:
        # Not raised, so that `_compute_fits` can distinguish it from an error of the cluster.
        return error


def _fit_to_gathered_rows(
    params: Callable[..., dict[str, Any]], fit: Callable[..., Any], estimator: Any,
    rows: tuple[Any, ...],
) -> Any:  # fmt: skip
    """Return an estimator that `fit` fits to gathered rows, or the error that it raised."""
    X, y, *cut = rows
    try:
        return fit(estimator, X, y, params(cut))
    except Exception as error:
        return error  # not raised, for the reason in `_fit_gathered`


def _fit_and_score(
    estimator: Any, train: tuple[Any, Any, dict[str, Any]], test: Callable[[], Any],
    scorers: dict[str, Any], *, train_score: bool, error_score: Any,
    is_weighted: bool,
) -> SplitFit:  # fmt: skip
    """Fit a clone to one side and score it on the other; a failed fit scores `error_score`.

    `test` returns the test side, which is taken only once the fit is done: in memory it is a copy.
    """
    X, y, params = train
    begin = time.perf_counter()
    try:
        fitted = fit_clone(estimator, X, y, params)
    except Exception as error:
        if error_score == "raise":
            raise
        text = f"{type(error).__name__}: {error}"
        seconds = time.perf_counter() - begin
        return SplitFit.from_failure(scorers, train_score, error_score, seconds, text)
    fit_time = time.perf_counter() - begin
    guarded = guard_scorers(scorers, error_score)
    scored_train = train if train_score else None
    return score_fitted(guarded, fitted, test(), scored_train, fit_time, is_weighted=is_weighted)


def score_fitted(
    scorers: Mapping[str, Any], fitted: Any, test: tuple[Any, Any, dict[str, Any]],
    train: tuple[Any, Any, dict[str, Any]] | None, fit_time: float, *, is_weighted: bool = True,
) -> SplitFit:  # fmt: skip
    """Return a fitted estimator's scores on its test side, and on its training side if given.

    A side consists of rows, targets and arguments of ``fit``.
    """
    begin = time.perf_counter()
    test_scores = score_sides(scorers, fitted, *test, is_weighted=is_weighted)
    score_time = time.perf_counter() - begin  # only of the test side, as in scikit-learn
    train_scores = (
        {} if train is None else score_sides(scorers, fitted, *train, is_weighted=is_weighted)
    )
    return SplitFit(test_scores, train_scores, fit_time, score_time, fitted)


def fit_clone(estimator: Any, X: Any, y: Any, params: Mapping[str, Any]) -> Any:
    """Return a clone of an estimator, fitted to X and, unless it is None, y."""
    estimator_clone = clone(estimator)
    return estimator_clone.fit(X, **params) if y is None else estimator_clone.fit(X, y, **params)


def score_sides(
    scorers: Mapping[str, Any], estimator: Any, X: Any, y: Any, params: dict[str, Any], *,
    is_weighted: bool,
) -> dict[str, float]:  # fmt: skip
    """Return the scores of an estimator on one side of a split, weighted if `is_weighted` is set.

    With `is_weighted`, scorers get `sample_weight`, if it is among `params`, the arguments of
    ``fit``.
    """
    options = (
        {"sample_weight": params["sample_weight"]}
        if is_weighted and "sample_weight" in params
        else {}
    )
    inputs = (X,) if y is None else (X, y)
    return {name: float(score(estimator, *inputs, **options)) for name, score in scorers.items()}


def merge_fit_params(
    plain: dict[str, Any], names: Sequence[str], cut: Sequence[Any]
) -> dict[str, Any]:
    """Return the arguments of ``fit``: plain ones, and the values of those that are split."""
    return {**plain, **dict(zip(names, cut, strict=True))}


def prepare_inputs(
    X: Any, y: Any, groups: Any, params: Mapping[str, Any] | None
) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return rows, targets, groups and arguments of ``fit`` in supported containers.

    If X is in memory, all others are computed, and a target given by its name is removed from X.
    """
    X, y, groups = convert_foreign(X, y, groups)
    converted = {name: convert_foreign(value) for name, value in (params or {}).items()}
    if is_dask(X):
        return X, y, groups, converted
    if isinstance(y, str):
        X, y, _ = take_named_columns(X, y, None)
    if sparse.issparse(X):
        X = X.tocsr()  # of other formats no rows can be taken, such as of BSR
    params = {name: _compute_value(value) for name, value in converted.items()}
    return X, _compute_value(y), _compute_value(groups), params


def _compute_value(value: Any) -> Any:
    # A list of delayed blocks is also a Dask collection, but has no `compute`.
    return value.compute() if is_dask(value) and hasattr(value, "compute") else value


def _has_value_per_row(name: str, value: Any, X: Any) -> bool:
    """Return whether an argument of ``fit`` has a value for each row of X."""
    # A Dask collection is always split, a single value never.
    if is_dask(value) or value is None or isinstance(value, str | Real):
        return is_dask(value)
    if name.endswith("sample_weight"):  # also of a pipeline's step: svc__sample_weight
        return True
    # As in scikit-learn: any other argument with the length of X.
    has_length = hasattr(value, "__len__") or hasattr(value, "shape")
    # NaN: Dask does not know the number of rows of X.
    knows_rows = not is_dask(X) or not np.isnan(getattr(X, "shape", (np.nan,))[0])
    return (
        has_length
        and knows_rows
        and not isinstance(value, Mapping)
        and count_rows_of_block(value) == count_rows_of_block(X)
    )


# --- splitters and the roles of rows -----------------------------------------------------------


def check_splitter(cv: Any, estimator: Any, y: Any) -> Any:
    """Return the splitter for `cv`, by the rules of scikit-learn's `check_cv`."""
    check_cv(cv)
    cv = 5 if cv is None else cv
    if isinstance(cv, Integral):
        # Rows with several labels each have no single label for stratification.
        stratified = y is not None and is_classifier(estimator) and not has_several_columns(y)
        return (StratifiedKFold if stratified else KFold)(int(cv))
    if hasattr(cv, "split"):
        own_class = getattr(_splitters, type(cv).__name__, None)
        if isinstance(cv, DaskSplitter) or own_class is None or type(cv) not in own_class.__mro__:
            return cv
        # A splitter of scikit-learn, which cannot split Dask collections, is replaced by the one of
        # the same name here; but not a subclass of it, whose own `split` would be lost.
        converted = own_class.__new__(own_class)
        converted.__dict__.update(vars(cv))
        return converted
    return model_selection.check_cv(list(cv))


def check_cv(cv: Any) -> None:
    """Raise an error unless `cv` is a number of folds, a splitter, some splits, or None."""
    # True is an Integral too, but no number of folds.
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
    """Raise an error if the estimator is a class, or lacks the target that it requires."""
    if isinstance(estimator, type):
        raise InvalidParameterError(
            f"estimator={estimator.__name__}:{suggest_nearest(estimator, ())}"
        )
    if y is None and get_tags(estimator).target_tags.required:
        raise InvalidDataError(
            f"y is None, and {type(estimator).__name__} requires y to be passed: its target, or "
            "the name of the column of X that holds it."
        )


def has_several_columns(y: Any) -> bool:
    """Return whether targets have several columns: several outputs, or several labels for a row."""
    shape: tuple[int, ...] = getattr(y, "shape", ())
    if isinstance(y, list | tuple) and y and isinstance(y[0], list | tuple):
        shape = len(y), len(y[0])
    return len(shape) == 2 and shape[1] != 1


def takes_dask_collections(estimator: Any) -> bool:
    """Return whether an estimator is of this package, frozen or not, or a pipeline of such."""
    if isinstance(estimator, FrozenEstimator):
        return takes_dask_collections(estimator.estimator)
    if isinstance(estimator, Pipeline):
        steps = [step for _, step in estimator.steps if not isinstance(step, str)]
        return all(map(takes_dask_collections, steps))
    # By the bases, so that a user's subclass counts like its base class.
    return any(kind.__module__.startswith("daskml_dist") for kind in type(estimator).__mro__)


def _assign_folds(splitter: Any, inputs: tuple[Any, ...], y: Any, groups: Any) -> RowsOfSplits:
    """Return the rows of Dask inputs (X first) with the codes of a splitter's splits."""
    if isinstance(splitter, DaskSplitter):
        return splitter.assign_rows(inputs, y, groups)
    # A splitter of another package gets computed targets and groups, and an X of the right number
    # of rows without their values: hardly any splitter reads these.
    columns = as_collection(inputs[0], numeric=False, any_shape=True)
    counts = count_rows(columns)
    n_rows = int(counts.sum())
    targets_and_groups = [
        None if value is None else np.asarray(_compute_value(value)) for value in (y, groups)
    ]
    splits = _list_splits(splitter, np.empty((n_rows, 1)), *targets_and_groups)
    check_one_role_each(_have_one_role_each(splits, n_rows))
    codes, roles = _encode_splits(splits, n_rows)
    blocks = tuple(np.split(codes, counts.cumsum()[:-1]))
    return RowsOfSplits(inputs, columns, GivenCodes(blocks), roles)


def _list_splits(splitter: Any, X: Any, y: Any, groups: Any) -> list[tuple[Any, Any]]:
    """Return a splitter's (train, test) row numbers."""
    splits = list(splitter.split(X, y, groups))  # an iterator can be gone through once
    if not splits:
        raise InvalidParameterError(
            "No fits were performed. Was the CV iterator empty? Were there no candidates? An "
            "iterator can only be used once: pass list(...) of it."
        )
    n_declared = splitter.get_n_splits(X, y, groups)
    if n_declared != len(splits):
        raise InvalidParameterError(
            f"cv.split and cv.get_n_splits return inconsistent results. Expected {n_declared} "
            f"splits, got {len(splits)}. Correct one of these methods of "
            f"{type(splitter).__name__}."
        )
    return splits


def _have_one_role_each(splits: list[tuple[Any, Any]], n_rows: int) -> bool:
    """Return whether every row is at most once on one side of each split, as codes require."""
    rows = np.arange(n_rows)  # indexed, since a side may be a mask, or count rows from the end
    rows_of_splits = (
        np.concatenate([rows[np.asarray(side)] for side in split]) for split in splits
    )
    try:
        return all(np.bincount(drawn, minlength=1).max() <= 1 for drawn in rows_of_splits)
    except IndexError as error:
        raise InvalidParameterError(
            f"cv: a side of a split is neither row numbers nor a mask of the {n_rows} rows: "
            f"{error}. Make the splits from the rows that are passed."
        ) from error


def check_one_role_each(by_roles: bool) -> None:
    """Raise `InvalidParameterError` for splits in which a row has several roles."""
    if not by_roles:
        raise InvalidParameterError(
            "cv: a split uses a row both for training and for testing, or several times. Here, "
            "a row may have one role per split. Use each row once (sample_weight can count it "
            "several times), or use GridSearchCV with rows in memory."
        )


def _encode_splits(splits: list[tuple[Any, Any]], n_rows: int) -> tuple[Any, FoldAssignment]:
    """Return the codes of rows and their roles, given (train, test) row numbers or masks."""
    # A byte for each row and split: 100 MB for 10**7 rows in 10 splits.
    table = np.full((n_rows, len(splits)), NEITHER, np.int8)
    for split, (train, test) in enumerate(splits):
        table[np.asarray(train), split] = TRAIN
        table[np.asarray(test), split] = TEST
    if len(splits) <= DigitRoles.max_splits:
        roles = DigitRoles(len(splits))
        return roles.encode(list(table.T)), roles
    # A number with more digits would not be exact. Then each distinct row of the table is a code.
    rows, codes = np.unique(table, axis=0, return_inverse=True)
    return codes.ravel().astype(np.int64), TableRoles(rows)


# --- failures ----------------------------------------------------------------------------------


def _report_failures(errors: Sequence[str | None], error_score: Any) -> None:
    """Warn of failed fits in one warning, as scikit-learn does; raise an error if all failed."""
    failed = [error for error in errors if error is not None]
    if not failed:
        return
    # Equal errors are listed once, with the number of fits that they ended.
    line = "-" * 80
    causes = "\n".join(
        f"{line}\n{n} fits failed with the following error:\n{error}"
        for error, n in Counter(failed).items()
    )
    if len(failed) == len(errors):
        raise InvalidParameterError(
            f"\nAll the {len(failed)} fits failed.\nIt is very likely that your model is "
            "misconfigured.\nYou can try to debug the error by setting error_score='raise'.\n\n"
            f"Below are more details about the failures:\n{causes}"
        )
    warnings.warn(
        f"\n{len(failed)} fits failed out of a total of {len(errors)}.\nThe score on these "
        f"train-test partitions for these parameters will be set to {error_score}.\nIf these "
        "failures are not expected, you can try to debug them by setting error_score='raise'.\n\n"
        f"Below are more details about the failures:\n{causes}",
        FitFailedWarning,
        stacklevel=user_stack_level(),
    )


def guard_scorers(scorers: Mapping[str, Any], error_score: Any) -> dict[str, Any]:
    """Return scorers that warn of their failures, and return `error_score` for them."""
    return {name: partial(_score_or_warn, score, error_score) for name, score in scorers.items()}


def _score_or_warn(
    scorer: Callable[..., Any], error_score: Any, /, *args: Any, **params: Any
) -> float:
    """Return a scorer's score; if it fails, warn and return `error_score`, unless "raise"."""
    try:
        score = scorer(*args, **params)
    except Exception as error:
        if error_score == "raise":
            raise
        warnings.warn(
            "Scoring failed. The score on this train-test partition for these parameters will "
            f"be set to {error_score}. Details: \n{type(error).__name__}: {error}",
            UserWarning,
            stacklevel=user_stack_level(),
        )
        return float(error_score)
    if isinstance(score, Mapping):
        raise InvalidParameterError(
            f"scoring: a callable has returned several scores, {sorted(score)}, which needs rows "
            "in memory. Name each of them: scoring={name: callable, ...}."
        )
    # Not a failure of one fit, but of the function: as in scikit-learn, always an error.
    number = _compute_value(score)
    if hasattr(number, "item"):
        with suppress(ValueError):  # of an array of several values
            number = number.item()
    if not isinstance(number, Number):
        raise InvalidDataError(
            f"scoring must return a number, got {score!r} ({type(score)}) instead. Correct the "
            f"function {scorer!r}."
        )
    return float(number)  # type: ignore[arg-type]


# --- metadata routing --------------------------------------------------------------------------


def is_routing_metadata(params: Mapping[str, Any]) -> bool:
    """Return whether scikit-learn's routing is on, and there is something to route."""
    has_values = any(value is not None for value in params.values())
    return has_values and bool(get_config()["enable_metadata_routing"])


def resolve_score_weights(
    estimator: Any, scorers: Mapping[str, Any], params: Mapping[str, Any], default: bool
) -> bool:
    """Return whether scores use the rows' weights: `default`, or by metadata routing.

    Routed weights count if all scorers request them. Requests that differ from score to score are
    an error, since a batched fit sums all scores over the same weighted rows.
    """
    if not is_routing_metadata(params):
        return default
    passed = {name: value for name, value in params.items() if value is not None}
    # A router like that of scikit-learn's searches: the estimator, and each scorer under its name.
    # For scorers without requests of their own those of the estimator's `score` apply.
    fit_mapping = MethodMapping().add(caller="fit", callee="fit")
    requesting = {name: s for name, s in scorers.items() if hasattr(s, "get_metadata_routing")}
    if len(requesting) < len(scorers):
        fit_mapping = fit_mapping.add(caller="fit", callee="score")
    router = MetadataRouter(owner="cross-validation").add(
        estimator=estimator, method_mapping=fit_mapping
    )
    for name, scorer in requesting.items():
        mapping = MethodMapping().add(caller="fit", callee="score")
        router.add(**{f"scorer_{name}": scorer}, method_mapping=mapping)
    routed = process_routing(router, "fit", **passed)
    requests = [set(routed[f"scorer_{name}"].score) for name in requesting]
    if len(requesting) < len(scorers):
        requests.append(set(routed.estimator.score))
    weighed, unweighed = all(r == {"sample_weight"} for r in requests), not any(requests)
    if set(routed.estimator.fit) != set(passed) or not (weighed or unweighed):
        raise InvalidParameterError(
            f"{sorted(passed)} are passed, and not requested by fit, or not by all scores alike. "
            "Request sample_weight by set_fit_request and set_score_request of the estimator (of "
            "each scorer, where scorers are given), and leave out what is not requested."
        )
    return weighed if requests else default
