"""Metrics of the order of rows within queries: (N)DCG and average precision, in one pass.

A query's score needs all its rows. Where they follow each other, as in most files, a block holds
the rows of its queries but for the first and the last one: these are scored where they lie, and of
the two the rows are kept, until the block beside is merged. The codes of the queries that were
scored are kept too. They tell if a query has rows elsewhere; then all rows are dealt by query, in a
second pass.

References
----------
K. Jarvelin and J. Kekalainen, "Cumulated gain-based evaluation of IR techniques", ACM Transactions
on Information Systems 20(4), 2002.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import Any

import dask.array as da
import numpy as np
import sklearn.metrics as theirs
from numpy.typing import NDArray

from daskml_dist.data.collection import Collection, as_collection, find_length
from daskml_dist.data.computing import compute_together
from daskml_dist.data.conversion import (
    check_no_missing,
    convert_foreign,
    copy_to_host,
    describe_block,
)
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.query_ids import join_queries, resolve_sizes
from daskml_dist.data.reduce import reduce_lazily, reduce_parts
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.metrics._columns import (
    ScoredColumns,
    as_table_of_columns,
    average_block_means,
    call_sklearn_metric,
    check_finite,
    check_weights_nonnegative,
    has_lazy_input,
    read_numbers,
    read_sample_weights,
    read_scores,
    read_targets,
)
from daskml_dist.models.bins import hash_numbers
from daskml_dist.models.query_codes import find_query_starts, read_codes
from daskml_dist.parameters.checks import check_count, check_number, check_one_of
from daskml_dist.solvers.ranking import ALL_PLACES, compute_discounts, compute_gains

Array = NDArray[Any]

#: Relevance and scores with a row for each query, and a column for each of its documents.
_TABLES = ScoredColumns(read_targets, read_scores, "y_score", multi_output=True)
#: Most ranges of queries that rows are dealt to, where queries lie in several blocks.
_MAX_RANGES = 64


@suggest_arguments
def ndcg_score(
    y_true: Any,
    y_score: Any,
    *,
    group: Any = None,
    k: int | None = None,
    gain: Any = "linear",
    sample_weight: Any = None,
    ignore_ties: bool = False,
    zero_division: float = 0.0,
) -> float:
    """Return the mean over queries of the normalised discounted cumulative gain.

    The gains of a query's rows, in the order of their scores, are summed with the discount
    ``1 / log2(place + 1)`` of places from 1, and divided by the sum in the best order.

    Parameters
    ----------
    y_true : dask Array, Series or DataFrame, or array-like
        Relevance of each row, of shape (n_rows,), not negative; without `group`, as in
        scikit-learn, of shape (n_queries, n_documents).
    y_score : like `y_true`
        Scores: within a query the row of the largest one comes first.
    group : of one value a row, or sizes of queries, optional
        Query of each row: an id (number, text), in any order and any blocks; or the numbers of rows
        of queries that follow each other.
    k : int or None, default=None
        Places that count; None: all.
    gain : {"linear", "exponential"} or sequence of float, default="linear"
        Gain of a row: `y_true`, as in scikit-learn; ``2**y_true - 1``, as in LightGBM and XGBoost;
        or the entry of a sequence of numbers >= 0 at index `y_true`.
    sample_weight : of one value a row or query, or None
        Weights of queries: all rows of a query have the same.
    ignore_ties : bool, default=False
        Whether rows of equal scores keep their order; else they share the mean of their gains.
    zero_division : float, default=0.0
        Score of a query without relevant rows: 0, as in scikit-learn; 1, as in LightGBM; or NaN,
        which leaves it out. Other values than 0 need `group`.

    Returns
    -------
    float
        In [0, 1].

    Raises
    ------
    InvalidParameterError, InvalidDataError
        An option is unknown; columns cannot be aligned, or hold NaN or a negative relevance.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import ndcg_score
    >>> relevance, scores = np.array([0, 1, 2, 1, 0]), np.array([0.1, 0.2, 0.3, 0.1, 0.9])
    >>> round(ndcg_score(relevance, scores, group=np.array([7, 7, 7, 8, 8])), 4)
    0.8155
    """
    _check_gain(gain, is_normalized=True)
    if not (isinstance(zero_division, Real) and math.isnan(zero_division)):
        check_number("zero_division", zero_division, lambda v: 0 <= v <= 1, "of [0, 1], or NaN")
    if group is None:
        if zero_division != 0:
            raise InvalidParameterError(
                f"zero_division={zero_division!r} needs group: tables are scored by scikit-learn, "
                "which gives 0 to a query without relevant documents. Pass the rows of all "
                "queries with group, or leave zero_division out."
            )
        metric = partial(theirs.ndcg_score, k=k, ignore_ties=ignore_ties)
        return _score_tables(metric, y_true, y_score, sample_weight, gain)
    score = _Gains(k, _make_gain(gain), ignore_ties, True, float(zero_division))
    return _score_queries(score, y_true, y_score, group, sample_weight)


@suggest_arguments
def dcg_score(
    y_true: Any,
    y_score: Any,
    *,
    group: Any = None,
    k: int | None = None,
    gain: Any = "linear",
    log_base: float = 2,
    sample_weight: Any = None,
    ignore_ties: bool = False,
) -> float:
    """Return the mean over queries of the discounted cumulative gain.

    Parameters
    ----------
    y_true, y_score, group, k, gain, sample_weight, ignore_ties
        As of :func:`ndcg_score`.
    log_base : float, default=2
        Base of the logarithm of the discounts.

    Returns
    -------
    float

    Raises
    ------
    InvalidParameterError, InvalidDataError
        As of :func:`ndcg_score`.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import dcg_score
    >>> relevance, scores = np.array([0, 1, 2, 1, 0]), np.array([0.1, 0.2, 0.3, 0.1, 0.9])
    >>> round(dcg_score(relevance, scores, group=np.array([7, 7, 7, 8, 8])), 4)
    1.6309
    """
    _check_gain(gain, is_normalized=False)
    check_number("log_base", log_base, lambda v: v > 1, "> 1")
    if group is None:
        metric = partial(theirs.dcg_score, k=k, log_base=log_base, ignore_ties=ignore_ties)
        return _score_tables(metric, y_true, y_score, sample_weight, gain)
    score = _Gains(k, _make_gain(gain), ignore_ties, False, 0.0)
    score_of_base_2 = _score_queries(score, y_true, y_score, group, sample_weight)
    return score_of_base_2 * math.log2(log_base)


def average_precision_by_query(
    y_true: Any, y_score: Any, group: Any, pos_label: Any, sample_weight: Any
) -> float:
    """Return the mean over queries of the average precision; 0 for one without relevant rows."""
    y_true = convert_foreign(y_true)
    labels: Any = y_true if hasattr(y_true, "shape") else np.asarray(y_true)
    relevance: Any
    if isinstance(labels, da.Array):
        relevance = da.map_blocks(_find_relevant, labels, pos_label, dtype=bool)
    elif is_dask(labels):
        meta = labels._meta == pos_label
        relevance = labels.map_partitions(_find_relevant, pos_label, meta=meta)
    else:
        relevance = _find_relevant(labels, pos_label)
    return _score_queries(_Precision(), relevance, y_score, group, sample_weight)


def _find_relevant(labels: Any, pos_label: Any) -> Any:
    """Return whether labels are `pos_label`, as 0 and 1, which can be joined with query codes."""
    # Compared, a missing label would be irrelevant.
    values = np.asarray(labels)
    check_no_missing(values, "y_true")
    if values.dtype.kind == "f":
        check_finite(values, "y_true", None)
    return labels == pos_label


# --- options ------------------------------------------------------------------------------------


def _check_gain(gain: Any, *, is_normalized: bool) -> None:
    """Check the gains; normalised sums have no meaning where some are negative."""
    if isinstance(gain, str):
        check_one_of("gain", gain, ("linear", "exponential"))
        return
    minimum, hint = (0.0, " >= 0") if is_normalized else (-math.inf, "")
    gains = np.asarray(gain)
    # NaN and infinity would make scores NaN, which `_sum_scores` leaves out.
    is_known = gains.ndim == 1 and gains.dtype.kind in "biuf" and np.isfinite(gains).all()
    if not is_known or (gains < minimum).any():
        raise InvalidParameterError(
            f'gain={gain!r} must be "linear", "exponential", or a list of finite numbers{hint}, '
            "one per label from 0."
        )


def _make_gain(gain: Any) -> str | tuple[float, ...]:
    return gain if isinstance(gain, str) else tuple(float(value) for value in gain)


def _gains_of(gain: str | tuple[float, ...], labels: Array) -> Array:
    """Return the gain of each label."""
    if isinstance(gain, str):
        gains = compute_gains(labels, gain)
        if not np.isfinite(gains).all():
            raise InvalidDataError(
                f"y_true holds the label {labels.max():g}, whose exponential gain overflows. Use "
                "gain='linear', in which the gain is the label itself."
            )
        return gains
    if (labels < 0).any() or (labels != np.trunc(labels)).any():
        raise InvalidDataError(
            "y_true holds labels that are not whole numbers >= 0, which index the gains. Round "
            "them, or use gain='linear', in which the gain is the label itself."
        )
    if len(labels) and labels.max() >= len(gain):
        raise InvalidDataError(
            f"y_true holds the label {labels.max():g}, and gain has {len(gain)} numbers. Give "
            "one per label from 0."
        )
    return np.asarray(gain, np.float64)[labels.astype(np.intp)]


def _score_tables(metric: Any, y_true: Any, y_score: Any, sample_weight: Any, gain: Any) -> float:
    """Return scikit-learn's metric of tables with a row for each query."""
    y_true, y_score = convert_foreign(y_true, y_score)
    if np.ndim(y_true) == 1 or (hasattr(y_true, "ndim") and y_true.ndim == 1):
        raise InvalidDataError(
            "y_true has one dimension: pass group, the query of each row, or tables with one "
            "row per query and one column per document."
        )
    of_labels = partial(_gains_of, _make_gain(gain))
    is_linear = isinstance(gain, str) and gain == "linear"
    if not has_lazy_input(y_true, y_score, sample_weight):
        y_true = np.asarray(y_true) if is_linear else of_labels(np.asarray(y_true))
        weights = {} if sample_weight is None else {"sample_weight": sample_weight}
        return float(call_sklearn_metric(metric, y_true, y_score, **weights))
    on_gains = metric if is_linear else partial(_call_on_gains, metric, of_labels)
    return float(average_block_means(on_gains, _TABLES, y_true, y_score, sample_weight)[0])


def _call_on_gains(
    metric: Any,
    of_labels: Callable[[Array], Array],
    y_true: Array,
    *metric_args: Any,
    **weights: Any,
) -> Any:
    return metric(of_labels(y_true), *metric_args, **weights)


# --- scores of some queries ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Gains:
    """Score of queries by discounted gains; picklable.

    Parameters
    ----------
    k : int or None
    gain : str or tuple of float
    ignores_ties : bool
    is_normalized : bool
    empty : float
        Score of a query without relevant rows; NaN leaves it out.
    """

    k: int | None
    gain: str | tuple[float, ...]
    ignores_ties: bool
    is_normalized: bool
    empty: float

    def __post_init__(self) -> None:
        if self.k is not None:
            check_count("k", self.k)

    def __call__(self, labels: Array, scores: Array, starts: Array) -> Array:
        from daskml_dist.backends.ranking_kernels import sum_best_gains, sum_ranked_gains

        if self.is_normalized and len(labels) and labels.min() < 0:
            raise InvalidDataError(
                "ndcg_score should not be used on negative y_true values. Shift them, y - y.min()."
            )
        gains, k = _gains_of(self.gain, labels), self.k or ALL_PLACES
        discounts = compute_discounts(int(np.diff(starts).max(initial=0)))
        n = len(starts) - 1
        sums, best = np.zeros(n), np.zeros(n)
        sum_ranked_gains(scores, gains, starts, discounts, k, not self.ignores_ties, 0, n, sums)
        if not self.is_normalized:
            return sums
        sum_best_gains(gains, starts, discounts, k, best)
        return np.asarray(np.divide(sums, best, out=np.full(n, self.empty), where=best > 0))


@dataclass(frozen=True)
class _Precision:
    """Average precision of queries; picklable."""

    def __call__(self, labels: Array, scores: Array, starts: Array) -> Array:
        from daskml_dist.backends.ranking_kernels import average_precisions

        precisions = np.zeros(len(starts) - 1)
        average_precisions(scores, labels, starts, 0, len(precisions), precisions)
        return np.maximum(precisions, 0.0)


_Score = _Gains | _Precision


# --- the pass over all blocks -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _RankedRows:
    """Rows of queries.

    Parameters
    ----------
    codes : ndarray of int64 of shape (n,)
    labels, scores, weight : ndarray of float64 of shape (n,)
    """

    codes: Array
    labels: Array
    scores: Array
    weight: Array

    def select(self, row_selection: Any) -> _RankedRows:
        """Return some of the rows."""
        return _RankedRows(
            self.codes[row_selection],
            self.labels[row_selection],
            self.scores[row_selection],
            self.weight[row_selection],
        )

    @classmethod
    def join(cls, row_blocks: Sequence[_RankedRows]) -> _RankedRows:
        """Return the rows of all parts, in their order."""
        names = ("codes", "labels", "scores", "weight")
        return cls(
            *(np.concatenate([getattr(part, name) for part in row_blocks]) for name in names)
        )

    def sort_by_query(self) -> _RankedRows:
        """Return the rows with those of each query behind each other, in their order."""
        starts = find_query_starts(self.codes)[:-1]
        if len(np.unique(self.codes[starts])) == len(starts):
            return self
        return self.select(np.argsort(self.codes, kind="stable"))


@dataclass(frozen=True, eq=False)
class _QuerySums:
    """Summary of some neighbouring blocks.

    Parameters
    ----------
    sums : ndarray of float64 of shape (2,)
        Weighted sum of the scores of the queries that were scored, and their weight.
    scored : list of ndarray of int64
        Codes of these queries.
    rows : _RankedRows
        Rows of queries that may have rows in other blocks.
    """

    sums: Array
    rows: _RankedRows
    scored: list[Array] = field(default_factory=list)


def _score_queries(
    score: _Score, y_true: Any, y_score: Any, group: Any, sample_weight: Any
) -> float:
    """Return the weighted mean of the scores of all queries."""
    y_true, y_score, group, weight = convert_foreign(y_true, y_score, group, sample_weight)
    n_rows = find_length(y_true)
    group, weight = resolve_sizes(group, n_rows, weight, 0)
    y = join_queries(y_true, group, _accept_labels)
    collection = as_collection(
        as_table_of_columns(y_score, "y_score"), y, weight, numeric=False, multi_output=True
    )
    if collection.kind == "memory":
        rows = _read_rows(0, *collection.parts[0])
        return _divide_sums(_sum_scores(score, rows.sort_by_query()))
    summary: _QuerySums = reduce_parts(
        collection, partial(_summarise_block, score), partial(_merge_blocks, score)
    )
    if summary is None:
        raise InvalidDataError(
            "y_true and y_score have no rows. Check the files or the filter that they come from."
        )
    open_rows = summary.rows.sort_by_query()
    codes = np.concatenate(
        [*summary.scored, open_rows.codes[find_query_starts(open_rows.codes)[:-1]]]
    )
    # A query that was scored twice lies in pieces, so its scores are of no use.
    if len(np.unique(codes)) == len(codes):
        return _divide_sums(summary.sums + _sum_scores(score, open_rows))
    return _divide_sums(_deal_and_score(score, collection))


def _accept_labels(labels: Array) -> None:
    """Accept all labels: each score checks its own."""


def _divide_sums(sums: Array) -> float:
    if sums[1] == 0:
        raise InvalidDataError(
            "The weights of all queries that count sum to zero, so there is no mean. Give some "
            "queries a positive weight, or set zero_division=0.0."
        )
    return float(sums[0] / sums[1])


def _read_rows(index: int, y_score: Any, y_true: Any, sample_weight: Any) -> _RankedRows:
    """Return the checked rows of a block."""
    y = np.asarray(y_true, np.float64)
    labels = read_numbers(y[:, 0], "y_true", index).astype(np.float64)
    scores = read_numbers(copy_to_host(y_score), "y_score", index).astype(np.float64)
    if len(scores) != len(labels):
        raise InvalidDataError(
            f"{describe_block(index)}y_true has {len(labels)} rows and y_score has {len(scores)}. "
            "Pass the same rows in each."
        )
    weight = read_sample_weights(copy_to_host(sample_weight), len(labels), index)
    weight = np.ones(len(labels)) if weight is None else weight.astype(np.float64)
    check_weights_nonnegative(weight)
    return _RankedRows(read_codes(y), labels, scores, weight)


def _sum_scores(score: _Score, rows: _RankedRows) -> Array:
    """Return the weighted sum of the scores of whole queries, sorted by query, and their weight."""
    starts = find_query_starts(rows.codes)
    if not len(rows.codes):
        return np.zeros(2)
    low, high = (
        extremum.reduceat(rows.weight, starts[:-1]) for extremum in (np.minimum, np.maximum)
    )
    if (low != high).any():
        raise InvalidDataError(
            "Rows of one query have different weights. Give all rows of a query the same weight."
        )
    scores = score(rows.labels, rows.scores, starts)
    counts = ~np.isnan(scores)
    return np.array([scores[counts] @ low[counts], low[counts].sum()])


def _summarise_block(
    score: _Score, index: int, y_score: Any, y_true: Any, sample_weight: Any
) -> _QuerySums | None:
    """Score the queries within a block; keep the rows of the first and of the last."""
    rows = _read_rows(index, y_score, y_true, sample_weight)
    if not len(rows.codes):
        return None
    # The first and the last query may go on in the blocks beside; all others end here, unless the
    # rows are in no order, which shows once all blocks are merged.
    first_code, last_code = rows.codes[0], rows.codes[-1]
    is_open = (rows.codes == first_code) | (rows.codes == last_code)
    inner = rows.select(~is_open).sort_by_query()
    codes = inner.codes[find_query_starts(inner.codes)[:-1]]
    return _QuerySums(_sum_scores(score, inner), rows.select(is_open), [codes])


def _merge_blocks(score: _Score, summaries: list[_QuerySums]) -> _QuerySums:
    """Merge the summaries of neighbouring blocks, and score the queries that end within them."""
    rows = _RankedRows.join([part.rows for part in summaries])
    is_open = (rows.codes == rows.codes[0]) | (rows.codes == rows.codes[-1])
    inner = rows.select(~is_open).sort_by_query()
    codes = inner.codes[find_query_starts(inner.codes)[:-1]]
    sums = np.sum([part.sums for part in summaries], axis=0) + _sum_scores(score, inner)
    scored = [codes, *(part_codes for part in summaries for part_codes in part.scored)]
    return _QuerySums(sums, rows.select(is_open), [np.concatenate(scored)])


# --- queries whose rows lie anywhere ------------------------------------------------------------


def _deal_and_score(score: _Score, collection: Collection) -> Array:
    """Deal all rows to ranges of queries, by hash, and return the sums of the scores of all."""
    # As many ranges as blocks, so that a range's rows take as much memory as a block's.
    n = min(len(collection.parts), _MAX_RANGES)
    # A range of queries is one reduction, whose rows come together in one task; all share the
    # tasks that read a block.
    delayed_sums = [
        reduce_lazily(
            collection, partial(_take_range, place, n), _RankedRows.join, partial(_finish, score)
        )
        for place in range(n)
    ]
    return np.asarray(np.sum(compute_together(delayed_sums), axis=0))


def _take_range(
    range_index: int, n: int, index: int, y_score: Any, y_true: Any, sample_weight: Any
) -> _RankedRows:
    """Return the rows of the queries that a range has of a block."""
    rows = _read_rows(index, y_score, y_true, sample_weight)
    part_numbers = hash_numbers(rows.codes.view(np.uint64)) % np.uint64(n)
    return rows.select(part_numbers == np.uint64(range_index))


def _finish(score: _Score, rows: _RankedRows) -> Array:
    return _sum_scores(score, rows.sort_by_query())
