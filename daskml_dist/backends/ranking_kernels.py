"""Compiled loops over the rows of queries: orders by score, gradients, and scores of rankings.

The rows of a query are contiguous. A query's results depend only on its rows, in their order, and
use only operations that IEEE 754 defines exactly: they have the same bits on every machine,
whichever queries are computed together.

Importing this module loads numba, so it is imported at first use.

References
----------
C. J. C. Burges, "From RankNet to LambdaRank to LambdaMART: an overview", Microsoft Research
Technical Report MSR-TR-2010-82, 2010. S. Bruch, "An alternative cross entropy loss for
learning-to-rank", WWW 2021. K. Jarvelin and J. Kekalainen, "Cumulated gain-based evaluation of IR
techniques", ACM Transactions on Information Systems 20(4), 2002.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_entry, compiled_inside
from daskml_dist.backends.elementary_functions import LOG_2, exponentiate_in_place, logarithm

_exact = compiled_entry()
_inside = compiled_inside(error_model="numpy")

#: Rows that are sorted by insertion before runs of this length are merged: scores of neighbours in
#: a query often are in order already, and small queries need no merging at all.
_RUN_ROWS = 16
#: Smallest argument of an exponential: scores further apart are treated as infinitely far, since
#: the ratio of two such exponentials would be 0 / 0.
_MIN_EXPONENT = -700.0
#: Added to the distance of two scores, by which a pair's weight is divided, as in LightGBM.
_SCORE_DISTANCE = 0.01


@_inside
def _sort_query(scores: Any, order: Any, spare_order: Any) -> None:
    """Write the order of a query's rows by decreasing score; ties stay in the order of rows."""
    n = len(scores)
    for i in range(n):
        order[i] = i
    # Runs by insertion: strict comparisons keep ties in order.
    for low in range(0, n, _RUN_ROWS):
        for i in range(low + 1, min(low + _RUN_ROWS, n)):
            place, score, k = order[i], scores[order[i]], i
            while k > low and scores[order[k - 1]] < score:
                order[k] = order[k - 1]
                k -= 1
            order[k] = place
    # Neighbouring runs are merged, doubling the length each time.
    width = _RUN_ROWS
    while width < n:
        for low in range(0, n - width, 2 * width):
            middle, high = low + width, min(low + 2 * width, n)
            left, right = low, middle
            for out in range(low, high):
                takes_right = left == middle or (
                    right < high and scores[order[right]] > scores[order[left]]
                )
                if takes_right:
                    spare_order[out] = order[right]
                    right += 1
                else:
                    spare_order[out] = order[left]
                    left += 1
            for i in range(low, high):
                order[i] = spare_order[i]
        width *= 2


@_inside
def _most_rows(starts: Any, first: int, last: int) -> int:
    """Return the number of rows of the largest of some queries."""
    most = 0
    for q in range(first, last):
        most = max(most, starts[q + 1] - starts[q])
    return most


@_exact
def fill_discounts(out: Any) -> None:
    """Write the discounts ``1 / log2(place + 1)`` of the places from 1 on."""
    for i in range(len(out)):
        out[i] = LOG_2 / logarithm(i + 2.0)


@_exact
def sum_best_gains(gains: Any, starts: Any, discounts: Any, cutoff: int, out: Any) -> None:
    """Write the discounted cumulative gain of each query's ideal order, over its first rows.

    Parameters
    ----------
    gains : ndarray of float64 of shape (n,)
    starts : ndarray of int64 of shape (n_queries + 1,)
        First row of each query, and the end of the last.
    discounts : ndarray of float64 of shape (at least the rows of the largest query,)
        Discount of each place, decreasing.
    cutoff : int
        Number of places that count.
    out : ndarray of float64 of shape (n_queries,)
    """
    most = _most_rows(starts, 0, len(out))
    order, spare = np.empty(most, np.int64), np.empty(most, np.int64)
    for q in range(len(out)):
        query_gains = gains[starts[q] : starts[q + 1]]
        n = len(query_gains)
        _sort_query(query_gains, order[:n], spare[:n])
        total = 0.0
        for i in range(min(n, cutoff)):
            total += query_gains[order[i]] * discounts[i]
        out[q] = total


@_exact
def sum_ranked_gains(
    scores: Any, gains: Any, starts: Any, discounts: Any, cutoff: int, averages_ties: bool,
    first: int, last: int, out: Any,
) -> None:  # fmt: skip
    """Write the discounted cumulative gain of some queries in the order of their scores.

    Rows of equal scores share the mean of their gains, since their order is undefined; or they keep
    their order. Parameters as in :func:`sum_best_gains`.
    """
    most = _most_rows(starts, first, last)
    order, spare = np.empty(most, np.int64), np.empty(most, np.int64)
    for q in range(first, last):
        query_scores, of_rows = scores[starts[q] : starts[q + 1]], gains[starts[q] : starts[q + 1]]
        n = len(query_scores)
        _sort_query(query_scores, order[:n], spare[:n])
        total, low = 0.0, 0
        while low < min(n, cutoff):
            high = low + 1
            if averages_ties:
                while high < n and query_scores[order[high]] == query_scores[order[low]]:
                    high += 1
            gain, discount = 0.0, 0.0
            for i in range(low, high):
                gain += of_rows[order[i]]
                if i < cutoff:
                    discount += discounts[i]
            total += gain / (high - low) * discount
            low = high
        out[q] = total


@_exact
def average_precisions(
    scores: Any, relevant: Any, starts: Any, first: int, last: int, out: Any
) -> None:
    """Write the average precision of some queries: the mean of precisions at relevant rows.

    Rows of equal scores count as one place, as in scikit-learn. A query without relevant rows gets
    -1.

    Parameters
    ----------
    scores, relevant : ndarray of float64 of shape (n,)
        The score of each row; whether it is relevant, 0 or 1.
    starts : ndarray of int64 of shape (n_queries + 1,)
        First row of each query, and the end of the last.
    first, last : int
        The queries, without `last`.
    out : ndarray of float64 of shape (n_queries,)
    """
    most = _most_rows(starts, first, last)
    order, spare = np.empty(most, np.int64), np.empty(most, np.int64)
    for q in range(first, last):
        query_start = starts[q]
        query_scores = scores[query_start : starts[q + 1]]
        n = len(query_scores)
        _sort_query(query_scores, order[:n], spare[:n])
        total, hits, low = 0.0, 0.0, 0
        while low < n:
            high, tie_relevance = low, 0.0
            while high < n and query_scores[order[high]] == query_scores[order[low]]:
                tie_relevance += relevant[query_start + order[high]]
                high += 1
            hits += tie_relevance
            if tie_relevance > 0.0:
                total += tie_relevance * hits / high
            low = high
        out[q] = total / hits if hits > 0.0 else -1.0


@_exact
def make_pair_gradients(
    scores: Any, gains: Any, weight: Any, starts: Any, discounts: Any, inverse_best: Any,
    truncation: int, sigmoid: float, by_gain: bool, normalizes: bool, first: int, last: int,
    g: Any, h: Any,
) -> None:  # fmt: skip
    """Compute the gradients of LambdaRank, or of RankNet, for the rows of some queries.

    For two rows, the first of which is more relevant, the loss is ``log(1 + exp(-sigmoid * (s_first
    - s_second)))``, in LambdaRank times the change of NDCG if they are exchanged (Burges 2010,
    section 4).

    Parameters
    ----------
    scores, gains : ndarray of float64 of shape (n,)
    weight : ndarray of float64 of shape (n_queries,)
    starts, discounts
        As in :func:`sum_best_gains`.
    inverse_best : ndarray of float64 of shape (n_queries,)
        1 / ideal discounted gain of a query; 0 if no row is relevant.
    truncation : int
        Only pairs with a row among the first `truncation` count.
    sigmoid : float
    by_gain : bool
        Whether pairs are weighted by the change of NDCG; else all have weight 1.
    normalizes : bool
        Whether a pair's weight decreases with the distance of its scores, and the gradients of a
        query are divided by the sum of their absolute values (as in LightGBM), so that large
        queries do not dominate small ones.
    first, last : int
        Range of queries.
    g, h : ndarray of float64 of shape (n,)
        Set to gradients and hessians.
    """
    begin, end = starts[first], starts[last]
    # For all rows of the range, in the order of their scores: pairs then need no exponentials.
    order, spare = np.empty(end - begin, np.int64), np.empty(end - begin, np.int64)
    sorted_scores, sorted_gains = np.empty(end - begin), np.empty(end - begin)
    powers = np.empty(end - begin)
    for q in range(first, last):
        start, stop = starts[q], starts[q + 1]
        a, b = start - begin, stop - begin
        _sort_query(scores[start:stop], order[a:b], spare[a:b])
        for i in range(a, b):
            sorted_scores[i] = scores[start + order[i]]
            sorted_gains[i] = gains[start + order[i]]
            powers[i] = max(sigmoid * (sorted_scores[i] - sorted_scores[a]), _MIN_EXPONENT)
    exponentiate_in_place(powers)
    most = _most_rows(starts, first, last)
    own_g, own_h = np.empty(most), np.empty(most)
    pair_g, pair_h = np.empty(most), np.empty(most)
    for q in range(first, last):
        start, n = starts[q], starts[q + 1] - starts[q]
        a = start - begin
        S, G, E = sorted_scores[a : a + n], sorted_gains[a : a + n], powers[a : a + n]
        for i in range(n):
            own_g[i] = 0.0
            own_h[i] = 0.0
        scale = inverse_best[q] if by_gain else 1.0
        # If all scores are equal, their distance has no information.
        spreads = normalizes and by_gain and S[0] != S[n - 1]
        constant, factor = (_SCORE_DISTANCE, 1.0) if spreads else (1.0, 0.0)
        size = 0.0
        for i in range(min(truncation, n - 1)):
            score, gain, power, discount = S[i], G[i], E[i], discounts[i]
            for j in range(i + 1, n):
                difference = gain - G[j]
                change = difference * (discount - discounts[j]) * scale
                if not by_gain:
                    change = 1.0 if difference > 0.0 else (-1.0 if difference < 0.0 else 0.0)
                change /= constant + factor * (score - S[j])
                # The model's probability of the wrong order of the two.
                share = 1.0 / (power + E[j])
                wrong = (E[j] if difference > 0.0 else power) * share
                pair_g[j] = change * wrong
                pair_h[j] = abs(change) * (power * share) * (E[j] * share)
            # Four independent sums, in a fixed order.
            g0, g1, g2, g3, h0, h1, s0, s1 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
            for j in range(i + 1, n):
                own_g[j] += pair_g[j]
                own_h[j] += pair_h[j]
            j = i + 1
            while j + 3 < n:
                g0 += pair_g[j]
                g1 += pair_g[j + 1]
                g2 += pair_g[j + 2]
                g3 += pair_g[j + 3]
                h0 += pair_h[j] + pair_h[j + 2]
                h1 += pair_h[j + 1] + pair_h[j + 3]
                s0 += abs(pair_g[j]) + abs(pair_g[j + 2])
                s1 += abs(pair_g[j + 1]) + abs(pair_g[j + 3])
                j += 4
            while j < n:
                g0 += pair_g[j]
                h0 += pair_h[j]
                s0 += abs(pair_g[j])
                j += 1
            own_g[i] -= (g0 + g2) + (g1 + g3)
            own_h[i] += h0 + h1
            size += s0 + s1
        size *= 2.0 * sigmoid
        times = weight[q]
        if normalizes and size > 0.0:
            times *= logarithm(1.0 + size) / (LOG_2 * size)
        for i in range(n):
            g[start + order[a + i]] = own_g[i] * sigmoid * times
            h[start + order[a + i]] = own_h[i] * sigmoid * sigmoid * times


@_exact
def make_cross_entropy_gradients(
    scores: Any, targets: Any, weight: Any, starts: Any, first: int, last: int, g: Any, h: Any
) -> None:
    """Compute the gradients of XE-NDCG for the rows of some queries.

    The loss is the cross entropy between the softmax of a query's scores and its targets, divided
    by their sum; the gradient is expanded to the third order, as in LightGBM.

    Parameters
    ----------
    scores : ndarray of float64 of shape (n,)
    targets : ndarray of float64 of shape (n,)
        ``2**label - draw``, with a draw in [0, 1) for each row and tree.
    weight, starts, first, last, g, h
        As in :func:`make_pair_gradients`.
    """
    begin, end = starts[first], starts[last]
    powers = np.empty(end - begin)
    for q in range(first, last):
        start, stop = starts[q], starts[q + 1]
        top = scores[start] if stop > start else 0.0
        for i in range(start, stop):
            top = max(top, scores[i])
        for i in range(start, stop):
            powers[i - begin] = scores[i] - top
    exponentiate_in_place(powers)
    terms = np.empty(_most_rows(starts, first, last))
    for q in range(first, last):
        start, n, times = starts[q], starts[q + 1] - starts[q], weight[q]
        share = powers[start - begin : start - begin + n]
        total, target = 0.0, 0.0
        for i in range(n):
            total += share[i]
            target += targets[start + i]
        # One row has no rank, and rows without targets have no order.
        is_ranked = n > 1 and target > 0.0
        first_sum, second_sum = 0.0, 0.0
        for i in range(n):
            share[i] /= total
            # At least the smallest step below 1, for a row that has all of the softmax.
            complement = max(1.0 - share[i], 1e-15)
            of_row = share[i] - targets[start + i] / target if is_ranked else 0.0
            g[start + i] = of_row
            terms[i] = of_row / complement
            first_sum += terms[i]
        for i in range(n):
            complement = max(1.0 - share[i], 1e-15)
            of_row = share[i] * (first_sum - terms[i])
            g[start + i] += of_row
            terms[i] = of_row / complement
            second_sum += terms[i]
        for i in range(n):
            of_row = g[start + i] + share[i] * (second_sum - terms[i])
            g[start + i] = of_row * times if is_ranked else 0.0
            h[start + i] = share[i] * (1.0 - share[i]) * times if is_ranked else 0.0
