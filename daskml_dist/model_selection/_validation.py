"""Rows cut for cross-validation, and an estimator fitted and scored on their sides."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
from dask.base import compute
from dask.delayed import delayed
from dask.sizeof import sizeof
from sklearn.base import clone

from daskml_dist.dask_internals.cluster import is_dask_error, list_workers
from daskml_dist.data.collection import Collection, take_named_columns
from daskml_dist.data.computing import flush_releases, get_computing_client
from daskml_dist.data.conversion import convert_foreign
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import PassGenerator, reduce_parts
from daskml_dist.diagnostics.works import reading, tell
from daskml_dist.errors import TrainingError
from daskml_dist.inference.block_mapping import current_client
from daskml_dist.model_selection._checks import (
    check_splitter,
    check_target,
    codes_of_indices,
    knows_dask,
    rows_of,
    splits_in_memory,
    tell_roles,
)
from daskml_dist.model_selection._failures import safe, tell_failures
from daskml_dist.model_selection._roles import NEITHER, TEST, TRAIN, FoldAssignment, TableRoles
from daskml_dist.model_selection._split_rows import (
    RowsOfSplits,
    TrainedRows,
    count_trained,
    n_rows_of,
)
from daskml_dist.models.batched import SingleSplitAssignment
from daskml_dist.sklearn_internals import take_rows_or_columns

__all__ = [
    "Fitted",
    "Splits",
    "beside",
    "fitted_on",
    "score_sides",
    "with_cut",
]


@dataclass(eq=False)
class Fitted:
    """Result of one fit on the training rows of a split.

    Parameters
    ----------
    test, train : dict of str to float
        Scores by name; `train` is empty unless it was asked for.
    fit_time, score_time : float
        Seconds.
    estimator : estimator or None
        Fitted; None where the fit failed.
    error : str or None
        Why it failed.
    """

    test: dict[str, float]
    train: dict[str, float] = field(default_factory=dict)
    fit_time: float = 0.0
    score_time: float = 0.0
    estimator: Any = None
    error: str | None = None


#: Share of the workers' memory that rows of a search may take beside those of its fits, which
#: keep up to 0.4 of it (`Run.memory_budget`).
_KEPT_SHARE = 0.2


class Splits:
    """Rows cut for cross-validation once, for any number of fits.

    Parameters
    ----------
    estimator : estimator
    X, y, groups : Dask collections, or rows in memory; None where absent
        `y` may name a column of X.
    fit_params : dict
        Arguments of ``fit``; those that have a value a row are cut like X.
    cv
        As in :func:`cross_validate`.

    Attributes
    ----------
    inputs : tuple
        X, y, and the arguments of ``fit`` that are cut: the weights of rows first.
    cut : tuple of str
        Names of these.
    plain : dict
        Arguments of ``fit`` that are not cut.
    by_roles : bool
        Whether every row plays one part in a split; else `roles` and `codes` say nothing. Of Dask
        collections it always does.
    roles : FoldAssignment
    codes : ndarray of int64 of shape (n_rows,), or None
        Of rows in memory.
    n_splits : int
    trained : TrainedRows or None
        What the splits train on, where somebody has counted it.
    """

    trained: TrainedRows | None = None

    def __init__(
        self, estimator: Any, X: Any, y: Any, groups: Any, fit_params: dict[str, Any], cv: Any
    ) -> None:
        X, y, weight = take_named_columns(X, y, fit_params.get("sample_weight"))
        given = {**fit_params, "sample_weight": weight} if weight is not None else dict(fit_params)
        names = [name for name, value in given.items() if _is_of_rows(name, value, X)]
        names.sort(key="sample_weight".__ne__)
        self.cut = tuple(names)
        self.inputs: tuple[Any, ...] = X, y, *(given.pop(name) for name in names)
        self.plain = given
        self.by_roles = True
        check_target(estimator, y)
        splitter = check_splitter(cv, estimator, y)
        self._rows: RowsOfSplits | None = None
        self.codes: Any = None
        if any(map(is_dask, (*self.inputs, groups))):
            get_computing_client("cross-validation")  # one of an event loop is told
            self._rows = rows_of(splitter, self.inputs, y, groups)
            self.roles: FoldAssignment = self._rows.roles
        else:
            self._splits = splits_in_memory(splitter, X, y, groups)
            self._set_roles()
        self.n_splits = self.roles.n_splits

    def _set_roles(self) -> None:
        """Codes of rows in memory, as far as these tell the splits."""
        n = n_rows_of(self.inputs[0])
        self.by_roles = tell_roles(self._splits, n)
        if self.by_roles:
            self.codes, self.roles = codes_of_indices(self._splits, n)
        else:
            self.codes = np.zeros(n, np.int64)
            self.roles = TableRoles(np.full((1, len(self._splits)), NEITHER, np.int8))

    @property
    def rows(self) -> RowsOfSplits:
        """The rows of Dask collections."""
        assert self._rows is not None
        return self._rows

    @property
    def for_stacks(self) -> bool:
        """Say if columns of a stack can be told their rows, and what else is passed to ``fit``."""
        return self.by_roles and not {*self.plain, *self.cut} - {"sample_weight"}

    def side(self, split: int, role: int) -> tuple[Any, Any, dict[str, Any]]:
        """Rows, targets and arguments of ``fit`` of one side of a split."""
        if self._rows is not None:
            X, y, *cut = self._rows.side(split, role)
        else:
            at = self._splits[split][0 if role == TRAIN else 1]
            X, y, *cut = (
                None if value is None else take_rows_or_columns(value, at) for value in self.inputs
            )
        return X, y, self.params(cut)

    def params(self, cut: Sequence[Any]) -> dict[str, Any]:
        """Arguments of ``fit``, of the values of those that are cut."""
        return with_cut(self.plain, self.cut, cut)

    def count_trained(self, classification: bool) -> PassGenerator[TrainedRows]:
        """Count the training rows of each split, of a classifier by their labels."""
        y = self.inputs[1]
        if self._rows is None:
            work = count_trained("memory", [(y, self.codes)], self.roles, classification)
        else:
            work = count_trained("dask", self.rows.coded(y), self.roles, classification)
        return (yield from work)

    @contextmanager
    def kept(self) -> Iterator[Splits]:
        """Keep lazy rows on the cluster, where its memory has room for them beside those of a fit.

        Each fit and each score reads them, which would be read from the source every time.
        """
        client = current_client() if is_dask(self.inputs[0]) else None
        if client is None:
            yield self
            return
        # Whoever only imports a search does without distributed.
        from distributed import futures_of

        if futures_of(self.inputs[0]):  # the user has persisted the rows
            yield self
            return
        workers = list_workers(client).values()
        room = _KEPT_SHARE * sum(float(facts["memory_limit"] or np.inf) for facts in workers)
        columns = self.rows.columns
        # A block for each thread, of one in four at most, tells how large all are.
        n_threads = sum(int(facts["nthreads"]) for facts in workers)
        some = columns.parts[:: max(-(-len(columns.parts) // max(n_threads, 1)), 4)]
        with reading("the first rows"):
            n_bytes = _count_all_bytes(replace(columns, parts=some))
        if n_bytes * len(columns.parts) > room * len(some):
            yield self
            return
        kept = copy.copy(self)
        kept._rows = self.rows.persisted()
        kept.inputs = kept._rows.inputs
        futures = futures_of((kept.inputs, kept._rows.columns.parts))
        try:
            with reading("the rows"):
                fits = _count_all_bytes(kept._rows.columns) <= room
            if fits:
                yield kept
                return
        finally:
            # At once, since Python may collect what the search leaves behind much later.
            for future in futures:
                future.release()
            flush_releases(client)
        yield self

    def of_split(self, split: int, X: Any) -> Splits:
        """One of the splits alone, of what a function of rows has made of X."""
        found = copy.copy(self)
        found.inputs, found.n_splits = (X, *self.inputs[1:]), 1
        weights = None if self.trained is None else self.trained.weights[[split]]
        found.roles = SingleSplitAssignment(self.roles, split, weights)
        if self._rows is not None:
            found._rows = self._rows.of_rows(X, found.roles)
        else:
            found._splits = [self._splits[split]]
        return found

    def fits(
        self, estimators: Sequence[Any], scorers: dict[str, Any], *, train_score: bool,
        error_score: Any, weigh_scores: bool = False,
    ) -> list[list[Fitted]]:  # fmt: skip
        """Fit clones of estimators on the training rows of each split, and score them.

        Estimators that know Dask collections are fitted one after the other, each on the whole
        cluster; others as tasks, on rows gathered there. `weigh_scores` hands weights of rows to
        the scorers too.
        """
        options = {"train_score": train_score, "error_score": error_score, "weigh": weigh_scores}
        every = [(e, split) for e in estimators for split in range(self.n_splits)]
        if self._rows is None or all(map(knows_dask, estimators)):
            found: list[Fitted] = []
            with self.kept() as kept:
                for e, split in every:
                    tell("fits", len(found), len(every))
                    train, test = kept.side(split, TRAIN), partial(kept.side, split, TEST)
                    found.append(_fit_and_score(e, train, test, scorers, **options))
        else:
            rows = [self.rows.gathered(split) for split in range(self.n_splits)]
            params = partial(with_cut, self.plain, self.cut)
            task = delayed(partial(_fit_here, params, scorers, options), pure=False)
            tell(f"{len(every)} fits as tasks")
            found = self._computed([task(e, rows[split]) for e, split in every])
        tell_failures([fit.error for fit in found], error_score)
        n = self.n_splits
        return [found[i : i + n] for i in range(0, len(found), n)]

    def _computed(self, tasks: list[Any]) -> list[Fitted]:
        """Results of tasks, which hand back what a fit or a score raises."""
        try:
            found = list(compute(*tasks))
        except Exception as error:
            if is_dask_error(error):
                raise TrainingError(
                    f"Tasks of fits were lost: {error} Give the workers more memory, or stop what "
                    "ends them, then fit again."
                ) from error
            raise self.rows.unread(error) from error
        for one in found:
            if isinstance(one, Exception):
                raise one
        return found


def _count_all_bytes(columns: Collection) -> int:
    return reduce_parts(columns, _count_bytes, _add_counts)


def _count_bytes(index: int, X: Any, *others: Any) -> int:
    return int(sizeof(X))


def _add_counts(counts: list[int]) -> int:
    return sum(counts)


def beside(
    X: Any, y: Any, groups: Any, params: Mapping[str, Any] | None
) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Rows, targets, groups and arguments of ``fit``: with rows in memory, all are there.

    A target that is given by its name is taken out of rows in memory.
    """
    X, y, groups = convert_foreign(X, y, groups)
    found = {name: convert_foreign(value) for name, value in (params or {}).items()}
    if is_dask(X):
        return X, y, groups, found
    if isinstance(y, str):
        X, y, _ = take_named_columns(X, y, None)
    return X, _here(y), _here(groups), {name: _here(value) for name, value in found.items()}


def _here(value: Any) -> Any:
    return value.compute() if is_dask(value) else value


def _fit_here(
    params: Callable[..., dict[str, Any]], scorers: dict[str, Any], options: dict[str, Any],
    estimator: Any, rows: tuple[tuple[Any, ...], tuple[Any, ...]],
) -> Fitted | Exception:  # fmt: skip
    """Fit and score on rows in memory; what is raised, where this is asked for."""
    train, test = ((X, y, params(cut)) for X, y, *cut in rows)
    try:
        return _fit_and_score(estimator, train, lambda: test, scorers, **options)
    except Exception as error:
        return error


def _is_of_rows(name: str, value: Any, X: Any) -> bool:
    """Return whether an argument of ``fit`` has a value for each row of X."""
    if is_dask(value) or value is None or isinstance(value, str | Real):
        return is_dask(value)
    if name.endswith("sample_weight"):
        return True
    there = hasattr(value, "__len__") or hasattr(value, "shape")
    known = not is_dask(X) or not np.isnan(getattr(X, "shape", (np.nan,))[0])
    return there and known and not isinstance(value, Mapping) and n_rows_of(value) == n_rows_of(X)


def with_cut(plain: dict[str, Any], names: Sequence[str], cut: Sequence[Any]) -> dict[str, Any]:
    """Arguments of ``fit``: those that are not cut, and those that are."""
    return {**plain, **dict(zip(names, cut, strict=True))}


def _fit_and_score(
    estimator: Any, train: tuple[Any, Any, dict[str, Any]], test: Callable[[], Any],
    scorers: dict[str, Any], *, train_score: bool, error_score: Any,
    weigh: bool,
) -> Fitted:  # fmt: skip
    X, y, params = train
    begin = time.perf_counter()
    try:
        fitted = fitted_on(estimator, X, y, params)
    except Exception as error:
        if error_score == "raise":
            raise
        scores = dict.fromkeys(scorers, float(error_score))
        text = f"{type(error).__name__}: {error}"
        taken = time.perf_counter() - begin
        return Fitted(scores, dict(scores) if train_score else {}, taken, error=text)
    fit_time = time.perf_counter() - begin
    begin = time.perf_counter()
    told = safe(scorers, error_score)
    found = score_sides(told, fitted, *test(), weigh=weigh)
    score_time = time.perf_counter() - begin
    trained = score_sides(told, fitted, X, y, params, weigh=weigh) if train_score else {}
    return Fitted(found, trained, fit_time, score_time, fitted)


def fitted_on(estimator: Any, X: Any, y: Any, params: Mapping[str, Any]) -> Any:
    """Clone of an estimator, fitted to some rows, with targets where there are any."""
    made = clone(estimator)
    return made.fit(X, **params) if y is None else made.fit(X, y, **params)


def score_sides(
    scorers: Mapping[str, Any], estimator: Any, X: Any, y: Any, params: dict[str, Any], *,
    weigh: bool,
) -> dict[str, float]:  # fmt: skip
    """Scores of some rows; with the weights among the arguments of ``fit``, where they count."""
    more = {"sample_weight": params["sample_weight"]} if weigh and "sample_weight" in params else {}
    given = (X,) if y is None else (X, y)
    return {name: float(score(estimator, *given, **more)) for name, score in scorers.items()}
