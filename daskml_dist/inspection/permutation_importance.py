"""Permutation importance: how much a score falls if a feature's values are permuted.

L. Breiman, "Random forests", Machine Learning 45, 2001, section 10. Values are permuted among all
rows, so a block needs values from other blocks: whole columns are gathered, one group at a time,
and sent to every worker. The permutation is a function of a row's number, which each block
evaluates for its own rows (`PermutedRows`). Scores are functions of sums over rows, so blocks are
scored on the workers that hold them, and only sums are sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from sklearn.utils import Bunch

from daskml_dist.data.collection import Collection, as_collection, take_named_columns
from daskml_dist.data.conversion import convert_named_columns, join_blocks
from daskml_dist.data.permutations import PermutedRows
from daskml_dist.data.reduce import concatenate_lists, reduce_parts
from daskml_dist.data.row_checks import make_no_rows_error
from daskml_dist.diagnostics.operation_progress import report_reading
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.errors.sklearn_errors import check_fitted
from daskml_dist.inference.block_mapping import share_in_graph
from daskml_dist.inspection._blocks import check_column, check_weights, read_rows
from daskml_dist.models.base import r2_of_sums
from daskml_dist.parameters.checks import check_count, check_value, count_bytes, seed_of

Sums = NDArray[np.float64]
Array = NDArray[Any]

#: Types of `scoring` that request several scores.
_CONTAINERS = (dict, list, tuple, set)
#: Number of sums kept for each score: R^2 needs all 4; other scores are padded with zeros.
_MAX_SUMS = 4


@report_reading("permutation_importance")
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
    """Measure how much a score drops when the values of a feature are permuted.

    As :func:`sklearn.inspection.permutation_importance`, also for Dask collections: values are
    permuted across all blocks, and the result depends neither on chunks nor on workers. Rows are
    not moved: columns are gathered, as many at a time as fit into `column_memory`, and every block
    is then scored with each of these columns permuted, in all repeats. So the blocks are computed
    twice (once to gather, once to score) if all columns are known to fit; otherwise once, and twice
    more for each group of columns.

    Parameters
    ----------
    estimator : estimator
        Fitted; of this package, of scikit-learn, or with the same interface. It is called with
        blocks in memory.
    X : array-like, pandas.DataFrame, dask Array or dask DataFrame
        Of shape (n_rows, n_features), with any dtypes that the estimator accepts. Not sparse.
    y : array-like, dask Array or dask Series of shape (n_rows,), or str
        Targets, or the column of `X` that holds them.
    scoring : str, callable, list or dict of these, or None, default=None
        "accuracy", "neg_log_loss", "neg_mean_absolute_error", "neg_mean_squared_error",
        "neg_root_mean_squared_error" or "r2"; None: "accuracy" for classifiers, "r2" for
        regressors. For rows in memory also a function of (estimator, X, y), which scikit-learn then
        calls. Several scores, as a list of names or a dict, use the same permutations, in one pass.
    n_repeats : int, default=5
        Number of permutations; each is used for all features.
    n_jobs : int or None, default=None
        Accepted for scikit-learn's interface, without effect: the workers' threads score the
        blocks.
    random_state : int, RandomState instance or None, default=None
        Seed of the permutations.
    sample_weight : array-like, dask Array or dask Series of shape (n_rows,), or None
        Weights of rows in the score.
    max_samples : float or int, default=1.0
        Rows drawn for each repeat, without replacement, as a share or a number.
    column_memory : int or str, default="512 MiB"
        Bytes of gathered columns in a process; at least one column is gathered (for 10**8 rows of
        float32 that is 400 MB).

    Returns
    -------
    sklearn.utils.Bunch
        ``importances``, an ndarray of float64 of shape (n_features, n_repeats), with
        ``importances_mean`` and ``importances_std`` of shape (n_features,). With several scores, a
        dict of these, by name.

    Raises
    ------
    InvalidParameterError, InvalidDataError
        An argument or the rows are invalid; the message names the remedy.
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
    named = _name_scores(scoring)
    scores = {name: _find_score(estimator, metric) for name, metric in named.items()}
    X, y, sample_weight = convert_named_columns(*take_named_columns(X, y, sample_weight))
    if y is None:
        raise InvalidDataError("permutation_importance scores predictions of y. Pass y as well.")
    collection = as_collection(X, y, sample_weight, numeric=False)
    known_scores = {name: score for name, score in scores.items() if score is not None}
    # A score that is a function is called with all rows together, which requires rows in memory.
    if len(known_scores) < len(scores):
        return _run_scikit_learn(
            collection, estimator, X, y, scoring, n_repeats, random_state, sample_weight,
            max_samples,
        )  # fmt: skip
    # 1. A pass that counts rows and bytes; it also gathers the columns if all fit the budget.
    if not (budget := count_bytes(column_memory)):
        raise InvalidParameterError(
            f'column_memory={column_memory!r}: use a number of bytes, or a string such as "2 GiB".'
        )
    summary = _summarize_data(collection, budget)
    n = int(summary.counts.sum())
    seed, n_drawn = seed_of(random_state), _count_drawn_rows(max_samples, n)
    target = _Target(summary.mean, getattr(estimator, "classes_", None))
    # Number of each block's first row: permutations are functions of row numbers.
    starts = np.cumsum(np.append(0, summary.counts[:-1]))
    scorer = _BlockScorer(
        estimator, tuple(known_scores.values()), target, starts,
        # One permutation per repeat for all features, so that they are compared on the same draws.
        [PermutedRows(n, n_drawn, seed, r) for r in range(n_repeats)],
    )  # fmt: skip
    # 2. A pass for each group of columns, which scores the blocks with each of these permuted; the
    # first such pass also scores the unchanged blocks.
    baseline, parts = np.zeros(0), list[NDArray[np.float64]]()
    for group in _group_columns(summary, budget):
        columns = summary.columns
        if columns is None:
            # The group's whole columns, gathered in a separate pass.
            columns = _join_columns(
                reduce_parts(collection, partial(_take_group, group), concatenate_lists)
            )
        gathered = _GatheredColumns(group, columns)
        # Whole columns are large: they are sent to each worker once, not with each task.
        shared = gathered if collection.kind == "memory" else share_in_graph(gathered)
        block_sums, sums = reduce_parts(
            collection, partial(_score_block, scorer, first=not parts), _add_block_sums, shared
        )
        baseline = block_sums if not parts else baseline
        parts.append(sums)
    # 3. Importances: the score on unchanged rows minus the score with the column permuted.
    permuted = np.concatenate(parts)  # of shape (n_features, n_repeats, n_scores, _MAX_SUMS)
    results = {
        name: _make_bunch(
            score.compute(baseline[i])
            - np.array([[score.compute(sums[i]) for sums in repeats] for repeats in permuted])
        )
        for i, (name, score) in enumerate(known_scores.items())
    }
    return results if isinstance(scoring, _CONTAINERS) else results[""]


def _name_scores(scoring: Any) -> dict[Any, Any]:
    """Return the requested scores by name; a single one has the name ""."""
    if not isinstance(scoring, _CONTAINERS):
        return {"": scoring}
    if not scoring:
        raise InvalidParameterError("scoring holds no score. Name one, or leave it out.")
    return dict(scoring) if isinstance(scoring, dict) else {name: name for name in scoring}


def _make_bunch(importances: NDArray[np.float64]) -> Bunch:
    """Return importances, one row for each feature, with their means and standard deviations."""
    return Bunch(
        importances_mean=importances.mean(axis=1),
        importances_std=importances.std(axis=1),
        importances=importances,
    )


def _run_scikit_learn(
    collection: Collection, estimator: Any, X: Any, y: Any, scoring: Any, n_repeats: int,
    random_state: Any, sample_weight: Any, max_samples: Any,
) -> Bunch:  # fmt: skip
    from sklearn import inspection

    if collection.kind != "memory":
        raise InvalidParameterError(
            "scoring is a function, which needs all rows in one process, but X is a Dask "
            "collection. Use the name of a score, or rows in memory."
        )
    return inspection.permutation_importance(
        estimator, X, y, scoring=scoring, n_repeats=n_repeats, random_state=random_state,
        sample_weight=sample_weight, max_samples=max_samples,
    )  # fmt: skip


def _count_drawn_rows(max_samples: Any, n: int) -> int:
    """Return the number of rows in each repeat, given `max_samples` and `n` rows."""
    if (
        isinstance(max_samples, Integral)
        and not isinstance(max_samples, bool)
        and 1 <= int(max_samples) <= n
    ):
        return int(max_samples)
    if (
        isinstance(max_samples, Real)
        and not isinstance(max_samples, Integral)
        and 0 < float(max_samples) <= 1
    ):
        return max(int(float(max_samples) * n), 1)
    raise InvalidParameterError(
        f"max_samples={max_samples!r}: use a share of (0, 1], or an integer from 1 to the {n} rows "
        "(max_samples must be <= n_samples)."
    )


# --- scores: functions of sums over rows --------------------------------------------------------


@dataclass(frozen=True)
class _Target:
    """Facts about all targets that scores need.

    Parameters
    ----------
    mean : float
        Mean of numeric targets, else 0.
    classes : ndarray, or None
        The classifier's `classes_`.
    """

    mean: float
    classes: Array | None


@dataclass(frozen=True)
class _Score:
    """Score that is a function of sums over rows; larger is better.

    Parameters
    ----------
    method : str
        Prediction method of the estimator.
    sums : callable
        Maps targets, predictions, weights and the `_Target` to sums; the first is the sum of
        weights.
    score : callable
        Maps the sums of all rows to the score.
    """

    method: str
    sums: Callable[[Array, Array, Array, _Target], list[Any]]
    score: Callable[[Sums], float]

    def compute(self, sums: Sums) -> float:
        """Return the score of the sums of all rows."""
        if sums[0] == 0:
            raise InvalidDataError(
                "The sample weights of the rows sum to zero, so there is no score. Give some rows "
                "a positive weight, or raise max_samples."
            )
        return float(self.score(sums))


def _sum_hits(y: Array, predicted: Array, w: Array, target: _Target) -> list[Any]:
    """Return the sum of weights, and the sum of weights of correct predictions."""
    return [w.sum(), w @ (y == predicted)]


def _sum_squared_errors(y: Array, predicted: Array, w: Array, target: _Target) -> list[Any]:
    """Return the sums of weights and of squared errors."""
    return [w.sum(), w @ (y - predicted) ** 2]


def _sum_absolute_errors(y: Array, predicted: Array, w: Array, target: _Target) -> list[Any]:
    """Return the sums of weights and of absolute errors."""
    return [w.sum(), w @ np.abs(y - predicted)]


def _sum_squares_and_variance(y: Array, predicted: Array, w: Array, target: _Target) -> list[Any]:
    """Return the sums that R^2 needs: weights, squared errors, deviations and their squares."""
    # Deviations are from the mean of all targets, which is near that of the drawn rows: differences
    # between sums of squared targets would cancel.
    deviation = y - target.mean
    return [w.sum(), w @ (y - predicted) ** 2, w @ deviation, w @ deviation**2]


def _sum_log_losses(y: Array, predicted: Array, w: Array, target: _Target) -> list[Any]:
    """Return the sums of weights and of log losses, clipped as in scikit-learn."""
    assert target.classes is not None
    codes = np.searchsorted(target.classes, y)
    codes = np.minimum(codes, len(target.classes) - 1)
    if not np.array_equal(target.classes[codes], y):
        raise InvalidDataError("y holds labels that the estimator does not know. Drop such rows.")
    probabilities = np.asarray(predicted, np.float64)
    # Rows are scaled to add up to 1, and probabilities kept away from 0 and 1, as in scikit-learn.
    p = np.take_along_axis(probabilities, codes[:, None], axis=1)[:, 0] / probabilities.sum(axis=1)
    eps = np.finfo(predicted.dtype).eps
    return [w.sum(), w @ -np.log(np.clip(p, eps, 1 - eps))]


def _compute_r2(sums: Sums) -> float:
    """Return R^2 of the sums of `_sum_squares_and_variance`."""
    return float(r2_of_sums(*sums))


def _compute_mean(sums: Sums) -> float:
    return float(sums[1] / sums[0])


def _negate_mean(sums: Sums) -> float:
    return -_compute_mean(sums)


def _negate_root(sums: Sums) -> float:
    return -float(np.sqrt(_compute_mean(sums)))


#: The available scores, under scikit-learn's names.
SCORES: dict[str, _Score] = {
    "accuracy": _Score("predict", _sum_hits, _compute_mean),
    "neg_log_loss": _Score("predict_proba", _sum_log_losses, _negate_mean),
    "neg_mean_absolute_error": _Score("predict", _sum_absolute_errors, _negate_mean),
    "neg_mean_squared_error": _Score("predict", _sum_squared_errors, _negate_mean),
    "neg_root_mean_squared_error": _Score("predict", _sum_squared_errors, _negate_root),
    "r2": _Score("predict", _sum_squares_and_variance, _compute_r2),
}


def _find_score(estimator: Any, scoring: Any) -> _Score | None:
    """Return the score with a name, or the estimator's default; None for a function."""
    from sklearn.base import is_classifier, is_regressor

    names = f"Use one of {sorted(SCORES)}"
    if scoring is None:
        if not (is_classifier(estimator) or is_regressor(estimator)):
            raise InvalidParameterError(
                f"{type(estimator).__name__} is neither a classifier nor a regressor, so it has no "
                f"score by default. {names} as `scoring`."
            )
        scoring = "accuracy" if is_classifier(estimator) else "r2"
    if callable(scoring):
        return None
    if not isinstance(scoring, str) or scoring not in SCORES:
        raise InvalidParameterError(
            f"scoring={scoring!r} is not a sum over rows. {names}; for rows in memory, a "
            "function (estimator, X, y) works too."
        )
    score = SCORES[scoring]
    if not hasattr(estimator, score.method):
        raise InvalidParameterError(
            f"scoring={scoring!r} needs {score.method}, which this {type(estimator).__name__} does "
            f"not have. {names}."
        )
    return score


# --- columns, whole and of blocks -----------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _DataSummary:
    """Summary of all blocks.

    Parameters
    ----------
    counts : ndarray of int64 of shape (n_blocks,)
        Number of rows of each block.
    sizes : ndarray of int64 of shape (n_features,)
        Number of bytes of each column.
    mean : float
        Mean of numeric targets, else 0.
    columns : list, or None
        All columns, if the pass gathered them.
    """

    counts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    mean: float
    columns: list[Any] | None


@dataclass(frozen=True, eq=False)
class _GatheredColumns:
    """Whole columns and their positions; callable because `share_in_graph` shares functions."""

    column_indices: range
    values: list[Any]

    def __call__(self) -> list[Any]:
        """Return the columns."""
        return self.values


def _summarize_data(collection: Collection, budget: int) -> _DataSummary:
    """Read all blocks once; also gather their columns if these are known to fit the budget."""
    part_bytes = collection.nbytes  # None if Dask does not know shapes or dtypes
    gather = collection.kind == "memory" or (part_bytes is not None and sum(part_bytes) <= budget)
    blocks = reduce_parts(collection, partial(_summarize_block, gather), concatenate_lists)
    blocks.sort(key=lambda block: block[0])  # the reduction has no fixed order
    filled = [block for block in blocks if block[1]]
    if not filled:
        raise make_no_rows_error(": there is nothing to score")
    counts = np.array([block[1] for block in blocks], np.int64)
    sizes = np.sum([block[2] for block in filled], axis=0)
    weight, total = np.sum([block[3] for block in filled], axis=0)
    columns = _join_columns([(block[0], block[4]) for block in filled]) if gather else None
    return _DataSummary(counts, sizes, total / weight if weight else 0.0, columns)


def _summarize_block(gather: bool, index: int, X: Any, y: Any, w: Any) -> list[Any]:
    """Return index, rows, bytes of columns, target sums and perhaps columns, as a list of one."""
    rows = read_rows(X, index)
    n, d = rows.shape
    target, weight = check_column(y, "y", index, n), check_weights(w, index, n)
    sums = [weight.sum(), weight @ target if target.dtype.kind in "biuf" else 0.0]
    columns = [_take_column(rows, j) for j in range(d)]
    sizes = np.array([_count_bytes(column) for column in columns], np.int64)
    return [(index, n, sizes, sums, columns if gather else None)]


def _group_columns(summary: _DataSummary, budget: int) -> list[range]:
    """Return ranges of columns whose total bytes fit the budget; at least one column each."""
    d = len(summary.sizes)
    if summary.columns is not None:
        return [range(d)]
    groups, first, n_bytes = [], 0, 0
    for j, size in enumerate(summary.sizes.tolist()):
        # A column that exceeds the budget alone is a separate group.
        if j > first and n_bytes + size > budget:
            groups.append(range(first, j))
            first, n_bytes = j, 0
        n_bytes += size
    return [*groups, range(first, d)]


def _take_group(group: range, index: int, X: Any, y: Any, w: Any) -> list[Any]:
    """Return the index and a group's columns of a block, as a list; empty for an empty block."""
    rows = read_rows(X, index)
    return [(index, [_take_column(rows, j) for j in group])] if rows.shape[0] else []


def _join_columns(block_columns: list[tuple[int, list[Any]]]) -> list[Any]:
    """Return whole columns, joined from the columns of blocks in their order."""
    block_columns = sorted(block_columns, key=lambda part: part[0])
    by_column = zip(*(columns for _, columns in block_columns), strict=True)
    return [join_blocks(list(pieces)) for pieces in by_column]


def _take_column(rows: Any, j: int) -> Any:
    """Return a column in contiguous memory, without the index of its block."""
    if is_dataframe_like(rows):
        return rows.iloc[:, j].reset_index(drop=True)
    # A view would keep the whole block in memory.
    return np.ascontiguousarray(rows[:, j])


def _count_bytes(column: Any) -> int:
    return int(column.memory_usage(deep=True) if hasattr(column, "iloc") else column.nbytes)


# --- blocks ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _BlockScorer:
    """Scores of every block, with columns permuted.

    Parameters
    ----------
    estimator : estimator
    scores : tuple of Score
    target : _Target
    starts : ndarray of int of shape (n_blocks,)
        Position of each block's first row among all rows.
    repeats : list of PermutedRows
    """

    estimator: Any
    scores: tuple[_Score, ...]
    target: _Target
    starts: NDArray[np.int64]
    repeats: list[PermutedRows]

    def sums(self, rows: Any, y: NDArray[Any], w: NDArray[Any]) -> NDArray[np.float64]:
        """Return the sums of some rows for each score, of shape (n_scores, _MAX_SUMS)."""
        # Scores with the same method share its predictions.
        methods = {score.method for score in self.scores}
        predictions = {name: np.asarray(getattr(self.estimator, name)(rows)) for name in methods}
        sums = np.zeros((len(self.scores), _MAX_SUMS))
        for score_sums, score in zip(sums, self.scores, strict=True):
            values = score.sums(y, predictions[score.method], w, self.target)
            score_sums[: len(values)] = values
        return sums


def _score_block(
    scorer: _BlockScorer,
    index: int,
    X: Any,
    y: Any,
    w: Any,
    gathered: _GatheredColumns,
    *,
    first: bool,
) -> Any:
    """Return the sums of a block unchanged (if `first`), and with each column permuted.

    The latter have the shape (n_columns, n_repeats, n_scores, _MAX_SUMS).
    """
    rows = read_rows(X, index)
    n = rows.shape[0]
    if n == 0:
        return None
    y, w = check_column(y, "y", index, n), check_weights(w, index, n)
    baseline = scorer.sums(rows, y, w) if first else None
    by_column: list[list[Any]] = [[] for _ in gathered.column_indices]
    row_numbers = scorer.starts[index] + np.arange(n)
    for repeat in scorer.repeats:
        # Positions of the drawn rows in the block, and numbers of the rows whose values they get.
        positions, source = repeat.find_drawn_rows(row_numbers)
        if len(positions) == 0:
            # None of the block's rows is drawn: sums of zero, broadcast below.
            for sums in by_column:
                sums.append(0.0)
            continue
        # One copy of the drawn rows is enough: its columns are permuted one at a time and restored.
        drawn_rows = rows.iloc[positions].copy() if is_dataframe_like(rows) else rows[positions]
        for sums, j, column in zip(
            by_column, gathered.column_indices, gathered.values, strict=True
        ):
            old_values = _swap_column(drawn_rows, j, column, source)
            sums.append(scorer.sums(drawn_rows, y[positions], w[positions]))
            _restore_column(drawn_rows, j, old_values)
    shape = len(scorer.scores), _MAX_SUMS
    return baseline, np.array([[np.broadcast_to(s, shape) for s in sums] for sums in by_column])


def _swap_column(rows: Any, j: int, column: Any, source: NDArray[np.int64]) -> Any:
    """Write values of a whole column into a block's column, and return the previous values."""
    if not is_dataframe_like(rows):
        old_values = rows[:, j].copy()
        rows[:, j] = column[source]
        return old_values
    old_values = rows.iloc[:, j]
    rows.isetitem(j, column.take(source).set_axis(rows.index))
    return old_values


def _restore_column(rows: Any, j: int, column: Any) -> None:
    """Write back the values of a column that `_swap_column` returned."""
    if is_dataframe_like(rows):
        rows.isetitem(j, column)
    else:
        rows[:, j] = column


def _add_block_sums(block_sums: list[Any]) -> Any:
    """Add the sums of blocks."""
    baselines, sums = zip(*block_sums, strict=True)
    return None if baselines[0] is None else np.sum(baselines, axis=0), sum(sums)
