"""`permutation_importance`: how much worse a model answers where a feature says nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
from dask.utils import is_dataframe_like, parse_bytes
from numpy.typing import NDArray
from sklearn.utils import Bunch

from daskml_dist.data.collection import Collection, as_collection, take_named_columns
from daskml_dist.data.conversion import convert_named_columns
from daskml_dist.data.permutations import PermutedRows
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.diagnostics.works import reading
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.errors.sklearn_errors import check_fitted
from daskml_dist.inference.block_mapping import share_in_graph
from daskml_dist.inspection._blocks import column_of, read_rows, weights_of
from daskml_dist.inspection._scores import Score, Target, score_of
from daskml_dist.parameters.checks import check_count, check_value, seed_of

__all__ = ["permutation_importance"]

#: Containers of several scores.
_SEVERAL = (dict, list, tuple, set)
#: Sums that a score comes from, at most: those of the others are filled up with zeros.
_N_SUMS = 4


@reading("permutation_importance")
@suggest_arguments
def permutation_importance(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    scoring: Any = None,
    n_repeats: int = 5,
    n_jobs: int | None = None,
    random_state: Any = None,
    sample_weight: Any = None,
    max_samples: float | int = 1.0,
    column_memory: int | str = "512 MiB",
) -> Any:
    """Measure how much a score falls where a feature's values are permuted among all rows.

    As :func:`sklearn.inspection.permutation_importance`, for Dask collections too: a permutation is
    one of all rows, of whatever blocks, and its result depends neither on chunks nor on workers.
    Rows stay where they are: columns are gathered, as many at a time as `column_memory` holds, and
    every block is then scored with all of these, in all repeats. So the blocks are made twice (once
    to gather, once to score) where all columns fit, and else once more and twice for each group.

    Parameters
    ----------
    estimator : estimator
        Fitted; of this package, of scikit-learn, or like these. It is called with blocks in memory.
    X : array-like, pandas.DataFrame, dask Array or dask DataFrame
        Of shape (n_rows, n_features); of any dtypes that the estimator takes. Not sparse.
    y : array-like, dask Array or dask Series of shape (n_rows,), or str
        Targets, or the column of `X` that holds them.
    scoring : str, callable, list or dict of these, or None, default=None
        "accuracy", "neg_log_loss", "neg_mean_absolute_error", "neg_mean_squared_error",
        "neg_root_mean_squared_error" or "r2"; None: "accuracy" of classifiers, "r2" of regressors.
        Of rows in memory also a function of (estimator, X, y), which scikit-learn then calls.
        Several, as a list of names or a dict, are scores of the same permutations, in one pass.
    n_repeats : int, default=5
        Permutations; each is used for all features.
    n_jobs : int or None, default=None
        Accepted for scikit-learn's interface; no effect: the workers' threads score the blocks.
    random_state : int, RandomState instance or None, default=None
        Of the permutations.
    sample_weight : array-like, dask Array or dask Series of shape (n_rows,), or None
        Weights of rows in the score.
    max_samples : float or int, default=1.0
        Rows that are drawn for a repeat, without replacement, as a share or a number.
    column_memory : int or str, default="512 MiB"
        Bytes of gathered columns in a process; one column is gathered at least (of 10**8 rows of
        float32 it is 400 MB).

    Returns
    -------
    sklearn.utils.Bunch
        ``importances``, an ndarray of float64 of shape (n_features, n_repeats), with
        ``importances_mean`` and ``importances_std`` of shape (n_features,). Of several scores a
        dict of these, by their names.

    Raises
    ------
    InvalidParameterError, InvalidDataError
        Naming the remedy.
    NotFittedError
        The estimator is not fitted.

    References
    ----------
    L. Breiman, "Random forests", Machine Learning 45 (2001).

    Examples
    --------
    >>> import dask.array as da
    >>> from daskml_dist.inspection import permutation_importance
    >>> from daskml_dist.linear_model import Ridge
    >>> X = da.random.default_rng(0).normal(size=(1000, 2), chunks=(250, 2)).persist()
    >>> model = Ridge().fit(X, X[:, 0])
    >>> found = permutation_importance(model, X, X[:, 0], random_state=0)
    >>> found.importances_mean.round() + 0.0
    array([2., 0.])
    """
    check_fitted(estimator)
    check_count("n_repeats", n_repeats)
    check_value("permutation_importance", "n_jobs", n_jobs)
    named = _by_name(scoring)
    scores = {name: score_of(estimator, one) for name, one in named.items()}
    X, y, sample_weight = convert_named_columns(*take_named_columns(X, y, sample_weight))
    if y is None:
        raise InvalidDataError("permutation_importance scores predictions of y. Pass y as well.")
    collection = as_collection(X, y, sample_weight, numeric=False)
    plain = {name: score for name, score in scores.items() if score is not None}
    if len(plain) < len(scores):
        return _by_scikit_learn(
            collection, estimator, X, y, scoring, n_repeats, random_state, sample_weight,
            max_samples,
        )  # fmt: skip
    budget = parse_bytes(column_memory)
    facts = _survey(collection, budget)
    n = int(facts.counts.sum())
    seed, m = seed_of(random_state), _drawn(max_samples, n)
    target = Target(facts.centre, getattr(estimator, "classes_", None))
    work = _PermutationTask(
        estimator, tuple(plain.values()), target, np.cumsum(np.append(0, facts.counts[:-1])),
        [PermutedRows(n, m, seed, r) for r in range(n_repeats)],
    )  # fmt: skip
    baseline, parts = np.zeros(0), list[NDArray[np.float64]]()
    for group in _groups(facts, budget):
        columns = facts.columns
        if columns is None:
            columns = _joined(reduce_parts(collection, partial(_columns_of, group), _chained))
        held = _Columns(group, columns)
        given = held if collection.kind == "memory" else share_in_graph(held)
        own, sums = reduce_parts(
            collection, partial(_score_block, work, first=not parts), _added, given
        )
        baseline = own if not parts else baseline
        parts.append(sums)
    permuted = np.concatenate(parts)  # of shape (n_features, n_repeats, n_scores, _N_SUMS)
    found = {
        name: _bunch(
            score.of(baseline[i])
            - np.array([[score.of(one[i]) for one in repeats] for repeats in permuted])
        )
        for i, (name, score) in enumerate(plain.items())
    }
    return found if isinstance(scoring, _SEVERAL) else found[""]


def _by_name(scoring: Any) -> dict[Any, Any]:
    """Return the scores that are asked for, by name; a single one has none."""
    if not isinstance(scoring, _SEVERAL):
        return {"": scoring}
    if not scoring:
        raise InvalidParameterError("scoring holds no score. Name one, or leave it out.")
    return dict(scoring) if isinstance(scoring, dict) else {name: name for name in scoring}


def _bunch(importances: NDArray[np.float64]) -> Bunch:
    return Bunch(
        importances_mean=importances.mean(axis=1),
        importances_std=importances.std(axis=1),
        importances=importances,
    )


def _by_scikit_learn(
    collection: Collection, estimator: Any, X: Any, y: Any, scoring: Any, n_repeats: int,
    random_state: Any, sample_weight: Any, max_samples: Any,
) -> Bunch:  # fmt: skip
    from sklearn import inspection

    if collection.kind != "memory":
        raise InvalidParameterError(
            "scoring is a function, and rows of a Dask collection may be more than one process "
            "holds. Use the name of a score, or rows in memory."
        )
    return inspection.permutation_importance(
        estimator, X, y, scoring=scoring, n_repeats=n_repeats, random_state=random_state,
        sample_weight=sample_weight, max_samples=max_samples,
    )  # fmt: skip


def _drawn(given: Any, n: int) -> int:
    """Number of rows of a repeat."""
    if isinstance(given, Integral) and not isinstance(given, bool) and 1 <= int(given) <= n:
        return int(given)
    if isinstance(given, Real) and not isinstance(given, Integral) and 0 < float(given) <= 1:
        return max(int(float(given) * n), 1)
    raise InvalidParameterError(
        f"max_samples={given!r}: use a share of (0, 1], or an integer from 1 to the {n} rows "
        "(max_samples must be <= n_samples)."
    )


# --- columns ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Facts:
    """Facts that a survey tells: rows of each block, bytes of each column, mean target, columns."""

    counts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    centre: float
    columns: list[Any] | None


@dataclass(frozen=True, eq=False)
class _Columns:
    """Whole columns, by their numbers. (Callable, as what is shared must be.)"""

    numbers: range
    values: list[Any]

    def __call__(self) -> list[Any]:
        """The values."""
        return self.values


def _survey(collection: Collection, budget: int) -> _Facts:
    """Look at all blocks, and gather their columns where it is known that they fit."""
    known = collection.nbytes
    gather = collection.kind == "memory" or (known is not None and sum(known) <= budget)
    found = reduce_parts(collection, partial(_look, gather), _chained)
    found.sort(key=lambda one: one[0])
    filled = [one for one in found if one[1]]
    if not filled:
        raise InvalidDataError(
            "X holds 0 sample(s) in all its blocks: there is nothing to score. Check the filter or "
            "the path that made the collection."
        )
    counts = np.array([one[1] for one in found], np.int64)
    sizes = np.sum([one[2] for one in filled], axis=0)
    weight, total = np.sum([one[3] for one in filled], axis=0)
    columns = _joined([(one[0], one[4]) for one in filled]) if gather else None
    return _Facts(counts, sizes, total / weight if weight else 0.0, columns)


def _look(gather: bool, index: int, X: Any, y: Any, w: Any) -> list[Any]:
    rows = read_rows(X, index)
    n, d = rows.shape
    target, weight = column_of(y, "y", index, n), weights_of(w, index, n)
    sums = [weight.sum(), weight @ target if target.dtype.kind in "biuf" else 0.0]
    each = [_taken(rows, j) for j in range(d)]
    sizes = np.array([_bytes(one) for one in each], np.int64)
    return [(index, n, sizes, sums, each if gather else None)]


def _groups(facts: _Facts, budget: int) -> list[range]:
    """Columns that are gathered together."""
    d = len(facts.sizes)
    if facts.columns is not None:
        return [range(d)]
    found, first, held = [], 0, 0
    for j, size in enumerate(facts.sizes.tolist()):
        if j > first and held + size > budget:
            found.append(range(first, j))
            first, held = j, 0
        held += size
    return [*found, range(first, d)]


def _columns_of(group: range, index: int, X: Any, y: Any, w: Any) -> list[Any]:
    rows = read_rows(X, index)
    return [(index, [_taken(rows, j) for j in group])] if rows.shape[0] else []


def _chained(parts: list[list[Any]]) -> list[Any]:
    return [one for part in parts for one in part]


def _joined(parts: list[tuple[int, list[Any]]]) -> list[Any]:
    """Whole columns of those of blocks."""
    parts = sorted(parts, key=lambda part: part[0])
    return [_whole(list(of)) for of in zip(*(columns for _, columns in parts), strict=True)]


def _whole(pieces: list[Any]) -> Any:
    if not hasattr(pieces[0], "iloc"):
        return np.concatenate(pieces)
    import pandas as pd

    return pd.concat(pieces, ignore_index=True)


def _taken(rows: Any, j: int) -> Any:
    """A column, apart from its block."""
    if is_dataframe_like(rows):
        return rows.iloc[:, j].reset_index(drop=True)
    return np.ascontiguousarray(rows[:, j])


def _bytes(column: Any) -> int:
    return int(column.memory_usage(deep=True) if hasattr(column, "iloc") else column.nbytes)


# --- blocks ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _PermutationTask:
    """Task that is done with every block.

    Parameters
    ----------
    estimator : estimator
    scores : tuple of Score
    target : Target
    starts : ndarray of int of shape (n_blocks,)
        Number of each block's first row.
    draws : list of PermutedRows
        One a repeat.
    """

    estimator: Any
    scores: tuple[Score, ...]
    target: Target
    starts: NDArray[np.int64]
    draws: list[PermutedRows]

    def sums(self, rows: Any, y: NDArray[Any], w: NDArray[Any]) -> NDArray[np.float64]:
        """Sums of some rows for each score, of shape (n_scores, _N_SUMS)."""
        methods = {score.method for score in self.scores}
        answers = {name: np.asarray(getattr(self.estimator, name)(rows)) for name in methods}
        sums = np.zeros((len(self.scores), _N_SUMS))
        for own, score in zip(sums, self.scores, strict=True):
            values = score.sums(y, answers[score.method], w, self.target)
            own[: len(values)] = values
        return sums


def _score_block(
    work: _PermutationTask, index: int, X: Any, y: Any, w: Any, given: _Columns, *, first: bool
) -> Any:
    """Sums of a block as it is (asked for `first`), and with each column in each repeat."""
    rows = read_rows(X, index)
    n = rows.shape[0]
    if n == 0:
        return None
    y, w = column_of(y, "y", index, n), weights_of(w, index, n)
    own = work.sums(rows, y, w) if first else None
    found: list[list[Any]] = [[] for _ in given.numbers]
    numbers = work.starts[index] + np.arange(n)
    for draw in work.draws:
        at, source = draw.of(numbers)
        if len(at) == 0:
            for of in found:
                of.append(0.0)
            continue
        some = rows.iloc[at].copy() if is_dataframe_like(rows) else rows[at]
        for of, j, column in zip(found, given.numbers, given.values, strict=True):
            before = _replace(some, j, column, source)
            of.append(work.sums(some, y[at], w[at]))
            _put(some, j, before)
    shape = len(work.scores), _N_SUMS
    return own, np.array([[np.broadcast_to(one, shape) for one in of] for of in found])


def _replace(rows: Any, j: int, column: Any, source: NDArray[np.int64]) -> Any:
    """Write values of a whole column to a block's; what was there."""
    if not is_dataframe_like(rows):
        before = rows[:, j].copy()
        rows[:, j] = column[source]
        return before
    before = rows.iloc[:, j]
    rows.isetitem(j, column.take(source).set_axis(rows.index))
    return before


def _put(rows: Any, j: int, column: Any) -> None:
    if is_dataframe_like(rows):
        rows.isetitem(j, column)
    else:
        rows[:, j] = column


def _added(parts: list[Any]) -> Any:
    filled = [part for part in parts if part is not None]
    if not filled:
        return None
    own = None if filled[0][0] is None else np.sum([part[0] for part in filled], axis=0)
    total = filled[0][1]
    for _, sums in filled[1:]:
        total = total + sums
    return own, total
