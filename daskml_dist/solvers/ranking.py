"""Ranking within queries on the rows of all trainers: gradients and NDCG.

A query's gradients need the scores of all its rows, which may be in several lanes and trainers.
:class:`QueryRows` gives each query to one of the trainers that have rows of it. If data is sorted
by query, only the rows of queries that are split between trainers are sent, 8 bytes per row and
iteration. The gradients of a query depend only on its rows in the order of their numbers, so they
have the same bits for any chunks and workers.

References
----------
C. J. C. Burges, "From RankNet to LambdaRank to LambdaMART: an overview", Microsoft Research
Technical Report MSR-TR-2010-82, 2010. S. Bruch, "An alternative cross entropy loss for
learning-to-rank", WWW 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.trees import TreeRows
from daskml_dist.errors import InvalidDataError
from daskml_dist.models.bins import draw_by_hash, hash_numbers
from daskml_dist.models.query_codes import find_query_starts, read_codes
from daskml_dist.solvers.binning import BinnedRows, HoldoutMask
from daskml_dist.solvers.boosting_scores import BoostLoss, RowRange, sum_values_exactly
from daskml_dist.solvers.dealt_rows import DealtRows, RowSelection
from daskml_dist.solvers.own_rows import Array, OwnRows

#: Objectives of :class:`RankingLoss`.
OBJECTIVES = ("lambdarank", "rank_xendcg", "pairwise")
#: Rows (of whole queries) whose gradients one thread computes together: their arrays stay in its
#: cache.
_ROWS_AT_ONCE = 1 << 14
#: Hashed with the seed, so that these draws are independent of other kinds of draws.
_HOLDOUT_DRAW, _TARGET_DRAW = 6, 7
#: Beyond this exponent, powers of two are infinite or 0.
_MAX_EXPONENT = 1 << 12
#: Stands for no limit on the counted places.
ALL_PLACES = np.iinfo(np.int64).max


@dataclass(frozen=True)
class RankingLoss(BoostLoss):
    """Loss of the order of rows within their queries.

    Parameters
    ----------
    objective : {"lambdarank", "rank_xendcg", "pairwise"}
    truncation : int or None
        Only pairs with a row among the first `truncation` rows of their query count; None: all
        pairs count.
    sigmoid : float
        Steepness of the probability that a pair is in the wrong order.
    normalizes : bool
        Whether gradients of a query are divided by the sum of their absolute values.
    label_gain : "exponential", "linear" or tuple of float
        Gain of a label: ``2**label - 1``, the label itself, or the entry at the label's index.
    """

    objective: str = "lambdarank"
    truncation: int | None = 30
    sigmoid: float = 1.0
    normalizes: bool = True
    label_gain: str | tuple[float, ...] = "exponential"
    kernel = "ranking"
    of_sets: ClassVar[bool] = True

    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        # Only differences of scores within a query count: all constants are equally good.
        return np.zeros_like(mean)

    def gather_sets(
        self, rows: OwnRows, binned_lanes: Sequence[BinnedRows], row_range: RowRange | None = None
    ) -> QueryRows:
        return QueryRows(rows, binned_lanes, self, row_range)

    def check_held_sets(
        self, rows: OwnRows, training_sets: QueryRows, held_out_lanes: Sequence[BinnedRows]
    ) -> None:
        _check_disjoint(rows, training_sets, QueryRows(rows, held_out_lanes, self))

    def make_set_gradients(self, sets: QueryRows, seed: int) -> QueryGradients:
        return QueryGradients(sets, self, seed)

    def make_set_scores(self, sets: QueryRows, binned_lanes: Sequence[BinnedRows]) -> QueryScores:
        return QueryScores(sets, binned_lanes)

    def gains(self, labels: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the gain of each label."""
        if isinstance(self.label_gain, tuple):
            return np.asarray(self.label_gain, np.float64)[labels.astype(np.intp)]
        return compute_gains(labels, self.label_gain)


def compute_gains(labels: NDArray[np.float64], kind: str) -> NDArray[np.float64]:
    """Return the gain of each label: ``2**label - 1`` if "exponential", the label if "linear"."""
    if kind == "linear":
        return labels
    exponents = np.clip(labels, -_MAX_EXPONENT, _MAX_EXPONENT).astype(np.int32)
    with np.errstate(over="ignore"):  # a gain that is too large becomes infinite
        # Powers with integer exponents are exact; others may differ by a bit between machines.
        if (exponents == labels).all():
            return np.asarray(np.ldexp(1.0, exponents) - 1.0)
        return np.asarray(np.exp2(labels) - 1.0)


def compute_discounts(n: int) -> NDArray[np.float64]:
    """Return the discounts ``1 / log2(place + 1)`` of `n` places from 1 (Jarvelin, Kekalainen)."""
    from daskml_dist.backends.ranking_kernels import fill_discounts

    discounts = np.empty(n)
    fill_discounts(discounts)
    return discounts


@dataclass(frozen=True)
class NdcgScorer:
    """Scorer of the mean NDCG of queries, weighted by query.

    Parameters
    ----------
    k : int or None
        Number of counted places; None: all.
    """

    k: int | None


@dataclass(frozen=True, eq=False)
class QueryHoldout(HoldoutMask):
    """Mask of the rows of random queries; a query is held out as a whole.

    Parameters
    ----------
    share : float
        Share of the queries.
    seed : int
    """

    share: float
    seed: int
    of_fit: ClassVar[bool] = True

    def estimate_training_rows(self, n_rows: int) -> float:
        return n_rows * (1 - self.share)

    def make_reader(self) -> Callable[[int, Array], NDArray[np.bool_]]:
        bound = np.uint64(int(self.share * 2.0**64))
        return lambda first, y: draw_by_hash(read_codes(y), self.seed, _HOLDOUT_DRAW) < bound


class QueryRows(DealtRows):
    """Rows of the queries that one trainer processes, sorted by query and row number.

    Collective: all trainers create theirs at the same time.

    Parameters
    ----------
    rows : OwnRows
    binned_lanes : sequence of BinnedRows
        Rows of each own lane, with their numbers and queries.
    loss : RankingLoss
    row_range : RowRange or None, default=None
        Numbers of the rows that are used; None: all.

    Attributes
    ----------
    starts : ndarray of int64 of shape (n_queries + 1,)
        First row of each query, and the end of the last.
    row_numbers : ndarray of int64 of shape (n,)
        Number of each row among all rows.
    gains : ndarray of float64 of shape (n,)
    weight : ndarray of float64 of shape (n_queries,)

    Raises
    ------
    InvalidDataError
        Rows of one query have different weights.
    """

    def __init__(
        self, rows: OwnRows, binned_lanes: Sequence[BinnedRows], loss: RankingLoss,
        row_range: RowRange | None = None,
    ) -> None:  # fmt: skip
        super().__init__(rows, binned_lanes, row_range)
        codes = self._join([part.queries for part in binned_lanes], np.int64)
        self._codes = codes
        self._places = self._divide(codes)
        numbers = self._send(self._join([part.row_numbers for part in binned_lanes], np.int64))
        codes, labels = self._send(codes), self._send(self._join([part.y for part in binned_lanes]))
        weight = self._send(self._join_weights(binned_lanes))
        self._order = _find_order(codes, numbers)
        codes, self.row_numbers, labels, weight = (
            self._sort(values) for values in (codes, numbers, labels, weight)
        )
        self.starts = find_query_starts(codes)
        self.gains = loss.gains(labels)
        self.weight = self._find_query_weights(weight)

    # -- assignment of queries to trainers -----------------------------------------------------

    def _divide(self, codes: Array) -> list[RowSelection] | None:
        """Return the positions of the own rows that go to each trainer; None if all stay here."""
        rows, size = self.rows, self.rows.size
        if size == 1:
            return None
        starts = find_query_starts(codes)
        run_codes, code_index = np.unique(codes[starts[:-1]], return_inverse=True)
        # A distributed directory: the trainer chosen by a code's hash learns which trainers have
        # rows of the query, and assigns one of them to process it, so that queries within one
        # trainer stay there.
        hashes = hash_numbers(run_codes.view(np.uint64))
        directory = (hashes % np.uint64(size)).astype(np.int64)
        positions_by_rank = [np.flatnonzero(directory == rank) for rank in range(size)]
        received_codes = rows.exchange_arrays(
            [run_codes[positions] for positions in positions_by_rank]
        )
        workers_by_rank = rows.exchange_arrays(_choose_workers(received_codes))
        worker = np.empty(len(run_codes), np.int64)
        for positions, workers in zip(positions_by_rank, workers_by_rank, strict=True):
            worker[positions] = workers
        leaves = bool((worker != rows.rank).any())
        if not rows.max_trainers(np.array([float(leaves)]))[0]:
            return None
        row_worker = np.repeat(worker[code_index], np.diff(starts))
        return [RowSelection(np.flatnonzero(row_worker == rank)) for rank in range(size)]

    def _find_query_weights(self, weight: Array) -> Array:
        """Return the weight of each query; raise on all trainers if rows of one differ."""
        if not len(weight):
            lowest = highest = np.empty(0)
        else:
            lowest = np.minimum.reduceat(weight, self.starts[:-1])
            highest = np.maximum.reduceat(weight, self.starts[:-1])
        if self.rows.max_trainers(np.array([float((lowest != highest).any())]))[0]:
            raise InvalidDataError(
                "Rows of one query have different weights, but in ranking a query has one "
                "weight. Give all its rows the same weight, such as their mean: "
                "weight.groupby(query).transform('mean')."
            )
        return lowest

    # -- values of rows ------------------------------------------------------------------------

    @property
    def n_queries(self) -> int:
        """Return the number of queries that this trainer processes."""
        return len(self.starts) - 1

    @cached_property
    def discounts(self) -> Array:
        """Return the discounts of as many places as the largest query has rows."""
        return compute_discounts(int(np.diff(self.starts).max(initial=0)))

    def own_codes(self) -> Array:
        """Return the codes of the queries of the own lanes' rows."""
        return np.unique(self._codes)

    def map_queries(self, function: Callable[[int, int], None]) -> None:
        """Call a function on ranges of queries, of limited size each, in the compute threads."""
        ends = np.searchsorted(
            self.starts, np.arange(_ROWS_AT_ONCE, self.starts[-1] + _ROWS_AT_ONCE, _ROWS_AT_ONCE)
        )
        bounds = np.unique([0, *np.minimum(ends, self.n_queries)]).tolist()
        self.rows.map_lanes(lambda pair: function(*pair), list(pairwise(bounds)))

    # -- NDCG ----------------------------------------------------------------------------------

    def best_gains(self, k: int | None) -> Array:
        """Return the discounted gain of each query's ideal order, over its first `k` rows."""
        from daskml_dist.backends.ranking_kernels import sum_best_gains

        gains = np.zeros(self.n_queries)
        sum_best_gains(self.gains, self.starts, self.discounts, k or ALL_PLACES, gains)
        return gains

    def score_ndcg(self, scores: Array, k: int | None, best: Array) -> float:
        """Return the mean NDCG over the queries of all trainers (collective).

        A query without relevant rows counts as 0, as in scikit-learn.
        """
        from daskml_dist.backends.ranking_kernels import sum_ranked_gains

        query_scores = np.zeros(self.n_queries)
        self.map_queries(
            lambda first, last: sum_ranked_gains(
                scores, self.gains, self.starts, self.discounts, k or ALL_PLACES, True, first,
                last, query_scores,
            )
        )  # fmt: skip
        # For the ideal order the quotient is 1 up to rounding; other orders cannot have a larger
        # sum.
        query_scores = np.divide(
            query_scores, best, out=np.zeros_like(query_scores), where=best > 0
        )
        total, weight = sum_values_exactly(
            self.rows, [np.stack([query_scores * self.weight, self.weight])], 2
        )
        return float(total / weight) if weight else 0.0


class QueryScores:
    """NDCG of a set of rows after each iteration.

    Parameters
    ----------
    queries : QueryRows
    binned_lanes : sequence of BinnedRows
        Rows of each own lane, whose raw predictions are scored.
    """

    def __init__(self, queries: QueryRows, binned_lanes: Sequence[BinnedRows]) -> None:
        self._queries, self._binned_lanes = queries, list(binned_lanes)
        self._best: dict[int | None, Array] = {}

    def score(self, scorer: NdcgScorer) -> float:
        """Return the NDCG of the current predictions, the same in all trainers (collective)."""
        k = scorer.k
        if k not in self._best:
            self._best[k] = self._queries.best_gains(k)
        raw = self._queries.collect([part.extra["raw"][0] for part in self._binned_lanes])
        return self._queries.score_ndcg(raw, k, self._best[k])


class QueryGradients:
    """Gradients of a ranking loss, query by query.

    Parameters
    ----------
    queries : QueryRows
        The training rows.
    loss : RankingLoss
    seed : int
        Seed of the draws of "rank_xendcg".
    """

    def __init__(self, queries: QueryRows, loss: RankingLoss, seed: int) -> None:
        self._queries, self._loss, self._seed = queries, loss, seed
        n_places = loss.truncation or ALL_PLACES
        best = queries.best_gains(n_places)
        self._inverse_best = np.divide(1.0, best, out=np.zeros_like(best), where=best > 0)
        self._g, self._h = np.zeros(len(queries.gains)), np.zeros(len(queries.gains))

    def compute_gradients(self, lanes: Sequence[TreeRows], tree_index: int) -> list[Array]:
        """Compute the gradients of the tree `tree_index`, and pass them to the lanes (collective).

        Returns
        -------
        list of ndarray of float64 of shape (2, 1)
            Largest gradient and hessian of each lane.
        """
        scores = self._queries.collect_predictions(lanes)
        make_gradients = self._make_cross_entropy if self._is_cross_entropy else self._make_pairs
        make_gradients(scores, tree_index)
        return self._queries.hand_gradients(lanes, self._g, self._h)

    @property
    def _is_cross_entropy(self) -> bool:
        return self._loss.objective == "rank_xendcg"

    def _make_pairs(self, scores: Array, tree_index: int) -> None:
        """Compute the gradients of LambdaRank or RankNet."""
        from daskml_dist.backends.ranking_kernels import make_pair_gradients

        queries, loss = self._queries, self._loss
        queries.map_queries(
            lambda first, last: make_pair_gradients(
                scores, queries.gains, queries.weight, queries.starts, queries.discounts,
                self._inverse_best, loss.truncation or ALL_PLACES, loss.sigmoid,
                loss.objective == "lambdarank", loss.normalizes, first, last, self._g, self._h,
            )
        )  # fmt: skip

    def _make_cross_entropy(self, scores: Array, tree_index: int) -> None:
        """Compute the gradients of XE-NDCG, whose targets are drawn again for each tree."""
        from daskml_dist.backends.ranking_kernels import make_cross_entropy_gradients

        queries = self._queries
        # Hashed from the number of a row: the same draws on any trainer.
        draws = draw_by_hash(queries.row_numbers, self._seed, _TARGET_DRAW, tree_index)
        targets = queries.gains + 1.0 - (draws >> np.uint64(11)) * 2.0**-53
        queries.map_queries(
            lambda first, last: make_cross_entropy_gradients(
                scores, targets, queries.weight, queries.starts, first, last, self._g, self._h
            )
        )


def _check_disjoint(
    rows: OwnRows, training_queries: QueryRows, held_out_queries: QueryRows
) -> None:
    """Raise on all trainers if a query has training rows and validation rows (collective)."""

    def deal(codes: Array) -> Array:
        """Return the codes of all trainers whose hash selects this trainer."""
        trainer = hash_numbers(codes.view(np.uint64)) % np.uint64(rows.size)
        codes_by_rank = [codes[trainer == np.uint64(rank)] for rank in range(rows.size)]
        return np.concatenate(rows.exchange_arrays(codes_by_rank))

    shared_codes = np.intersect1d(
        deal(training_queries.own_codes()), deal(held_out_queries.own_codes())
    )
    n_shared = int(rows.sum_trainers(np.array([len(shared_codes)], np.int64))[0])
    if n_shared:
        raise InvalidDataError(
            f"{n_shared} queries have rows both in the training rows and in a validation set, "
            "which would invalidate its score. Split by query: "
            "daskml_dist.model_selection.GroupKFold; if both sets number their queries from 0, "
            "pass group as sizes."
        )


def _choose_workers(codes_by_trainer: Sequence[Array]) -> list[Array]:
    """Return, for the codes that each trainer has rows of, the trainer that processes the query."""
    codes = np.concatenate(codes_by_trainer)
    rank_of_code = np.repeat(
        np.arange(len(codes_by_trainer)), [len(part) for part in codes_by_trainer]
    )
    # Within a code, trainers are sorted by rank.
    order = np.argsort(codes, kind="stable")
    starts = find_query_starts(codes[order])
    counts = np.diff(starts)
    # If several have rows of a query the hash chooses one, which spreads such queries evenly.
    hashes = hash_numbers(codes[order][starts[:-1]].view(np.uint64) + np.uint64(1))
    chosen_rank = rank_of_code[order][
        starts[:-1] + (hashes % counts.astype(np.uint64)).astype(np.int64)
    ]
    worker = np.empty(len(codes), np.int64)
    worker[order] = np.repeat(chosen_rank, counts)
    return np.split(worker, np.cumsum([len(part) for part in codes_by_trainer])[:-1])


def _find_order(codes: Array, row_numbers: Array) -> RowSelection | None:
    """Return an order that groups rows by query, sorted by number; None if they are in that order.

    Queries are sorted by their first row: if most rows are grouped already, they stay neighbours.
    """
    starts = find_query_starts(codes)[:-1]
    is_start = np.zeros(len(codes), bool)
    is_start[starts] = True
    is_sorted = bool((row_numbers[1:] > row_numbers[:-1])[~is_start[1:]].all())
    if is_sorted and len(np.unique(codes[starts])) == len(starts):
        return None
    order = np.lexsort((row_numbers, codes))
    starts = find_query_starts(codes[order])
    first = np.repeat(row_numbers[order[starts[:-1]]], np.diff(starts))
    return RowSelection(order[np.argsort(first, kind="stable")])
