"""Loops over the rows of queries equal their formulas, evaluated pair by pair in Python."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from daskml_dist.backends import ranking_kernels as kernels
from daskml_dist.solvers.ranking import compute_discounts

Array = NDArray[Any]

#: Rows of queries around the 4 pairs and the runs of 16 rows of unrolled loops.
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65, 130)
STARTS = np.concatenate([[0], np.cumsum(SIZES)]).astype(np.int64)
N, N_QUERIES = int(STARTS[-1]), len(SIZES)
RNG = np.random.default_rng(0)
SCORES = RNG.normal(size=N).round(1)  # with ties
LABELS = RNG.integers(0, 5, N).astype(float)
GAINS = 2**LABELS - 1
WEIGHT = RNG.uniform(0.5, 2, N_QUERIES)
DISCOUNTS = 1 / np.log2(np.arange(2.0, max(SIZES) + 2))
ALL = 10_000


def queries() -> list[slice]:
    """Return the rows of each query."""
    return [slice(a, b) for a, b in pairwise(STARTS)]


def order_of(scores: Array) -> Array:
    return np.argsort(-scores, kind="stable")


def test_discounts_equal_their_formula() -> None:
    np.testing.assert_allclose(compute_discounts(500), 1 / np.log2(np.arange(2.0, 502)), rtol=1e-15)


@pytest.mark.parametrize("cutoff", [1, 5, ALL])
def test_gains_of_the_order_of_scores(cutoff: int) -> None:
    best, by_score = np.zeros(N_QUERIES), np.zeros(N_QUERIES)
    kernels.sum_best_gains(GAINS, STARTS, DISCOUNTS, cutoff, best)
    arguments = SCORES, GAINS, STARTS, DISCOUNTS, cutoff, False
    # In two ranges of queries, which are computed separately.
    kernels.sum_ranked_gains(*arguments, 0, 9, by_score)
    kernels.sum_ranked_gains(*arguments, 9, N_QUERIES, by_score)
    for q, at in enumerate(queries()):
        for found, scores in ((best, GAINS), (by_score, SCORES)):
            gains = GAINS[at][order_of(scores[at])][:cutoff]
            assert found[q] == pytest.approx(gains @ DISCOUNTS[: len(gains)], rel=1e-13)


@pytest.mark.parametrize("normalizes", [True, False])
@pytest.mark.parametrize("by_gain", [True, False])
@pytest.mark.parametrize("truncation", [1, 7, ALL])
def test_gradients_of_pairs(normalizes: bool, by_gain: bool, truncation: int) -> None:
    best, g, h = np.zeros(N_QUERIES), np.zeros(N), np.zeros(N)
    kernels.sum_best_gains(GAINS, STARTS, DISCOUNTS, truncation, best)
    inverse = np.divide(1.0, best, out=np.zeros_like(best), where=best > 0)
    arguments = (
        SCORES,
        GAINS,
        WEIGHT,
        STARTS,
        DISCOUNTS,
        inverse,
        truncation,
        1.5,
        by_gain,
        normalizes,
    )
    kernels.make_pair_gradients(*arguments, 0, 13, g, h)
    kernels.make_pair_gradients(*arguments, 13, N_QUERIES, g, h)
    for q, at in enumerate(queries()):
        wanted = _pairs(SCORES[at], GAINS[at], inverse[q], truncation, 1.5, by_gain, normalizes)
        np.testing.assert_allclose([g[at], h[at]], WEIGHT[q] * wanted, rtol=1e-11, atol=1e-14)


def _pairs(
    scores: Array, gains: Array, inverse: float, truncation: int, sigmoid: float, by_gain: bool,
    normalizes: bool,
) -> Array:  # fmt: skip
    """Return gradients and hessians of a query by Burges (2010), pair by pair."""
    order, n = order_of(scores), len(scores)
    place = np.argsort(order)
    found, size = np.zeros((2, n)), 0.0
    spread = normalizes and by_gain and scores.max() != scores.min()
    for high in range(n):
        for low in range(n):
            if gains[high] <= gains[low] or min(place[high], place[low]) >= truncation:
                continue
            change = 1.0
            if by_gain:
                exchanged = DISCOUNTS[place[high]] - DISCOUNTS[place[low]]
                change = abs((gains[high] - gains[low]) * exchanged) * inverse
            distance = scores[high] - scores[low]
            if spread:
                change /= 0.01 + abs(distance)
            wrong = 1 / (1 + math.exp(sigmoid * distance))
            step = sigmoid * change * wrong
            found[:, high] += -step, sigmoid**2 * change * wrong * (1 - wrong)
            found[:, low] += step, sigmoid**2 * change * wrong * (1 - wrong)
            size += 2 * step
    return found * (math.log2(1 + size) / size if normalizes and size > 0 else 1.0)


def test_gradients_of_pairs_are_the_slopes_of_their_loss() -> None:
    scores, gains = RNG.normal(size=6), np.array([3.0, 0, 1, 7, 1, 0])
    starts, g, h = np.array([0, 6]), np.zeros(6), np.zeros(6)
    arguments = np.ones(1), starts, DISCOUNTS, np.ones(1), ALL, 1.0, False, False, 0, 1
    kernels.make_pair_gradients(scores, gains, *arguments, g, h)

    def loss(scores: Array) -> float:
        pairs = np.subtract.outer(scores, scores)[np.greater.outer(gains, gains)]
        return float(np.logaddexp(0, -pairs).sum())

    step = 1e-5 * np.eye(6)
    slopes = [(loss(scores + s) - loss(scores - s)) / 2e-5 for s in step]
    bends = [(loss(scores + s) - 2 * loss(scores) + loss(scores - s)) / 1e-10 for s in step]
    np.testing.assert_allclose(g, slopes, atol=1e-8)
    np.testing.assert_allclose(h, bends, atol=1e-4)


def test_gradients_of_far_scores_are_finite() -> None:
    scores = np.array([1e4, 0.0, -1e4, -1e4 - 1, 5.0])
    g, h = np.zeros(5), np.zeros(5)
    arguments = np.ones(1), np.array([0, 5]), DISCOUNTS, np.ones(1), ALL, 1.0, True, True, 0, 1
    kernels.make_pair_gradients(scores, np.arange(5.0), *arguments, g, h)
    assert np.isfinite([g, h]).all()
    assert g.sum() == pytest.approx(0, abs=1e-12)


def test_gradients_of_the_cross_entropy() -> None:
    targets, g, h = GAINS + RNG.random(N), np.zeros(N), np.zeros(N)
    arguments = SCORES, targets, WEIGHT, STARTS
    kernels.make_cross_entropy_gradients(*arguments, 0, 13, g, h)
    kernels.make_cross_entropy_gradients(*arguments, 13, N_QUERIES, g, h)
    for q, at in enumerate(queries()):
        share = np.exp(SCORES[at] - SCORES[at].max())
        share /= share.sum()
        if len(share) == 1:
            assert g[at] == h[at] == 0
            continue
        # Terms of three orders; each uses the other rows' terms of the order before.
        term = share - targets[at] / targets[at].sum()
        wanted = term.copy()
        for _ in range(2):
            part = term / (1 - share)
            term = share * (part.sum() - part)
            wanted += term
        np.testing.assert_allclose(g[at], WEIGHT[q] * wanted, rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(h[at], WEIGHT[q] * share * (1 - share), rtol=1e-9)


def test_results_do_not_depend_on_other_queries() -> None:
    """Bit for bit: a query alone gives the same result as among others."""
    inverse, g, h = np.ones(N_QUERIES), np.zeros(N), np.zeros(N)
    settings = 30, 1.0, True, True
    kernels.make_pair_gradients(
        SCORES, GAINS, WEIGHT, STARTS, DISCOUNTS, inverse, *settings, 0, N_QUERIES, g, h
    )
    for q, at in enumerate(queries()):
        own_g, own_h = np.zeros(SIZES[q]), np.zeros(SIZES[q])
        kernels.make_pair_gradients(
            SCORES[at], GAINS[at], WEIGHT[q : q + 1], np.array([0, SIZES[q]]), DISCOUNTS,
            inverse[:1], *settings, 0, 1, own_g, own_h,
        )  # fmt: skip
        assert own_g.tobytes() == g[at].tobytes()
        assert own_h.tobytes() == h[at].tobytes()
