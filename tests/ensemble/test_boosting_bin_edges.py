"""Bin edges of boosting equal scikit-learn's, plus further ones if frequent values take several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.ensemble._hist_gradient_boosting.binning import _find_binning_thresholds as theirs

from daskml_dist.models.bins import compute_bin_edges

rng = np.random.default_rng(0)
PLAIN = rng.normal(size=3_000)
#: Integers: half are few distinct negative values, the others have a long tail.
HEAVY = np.where(rng.random(3_000) < 0.5, -rng.integers(0, 9, 3_000), rng.exponential(300, 3_000))
HEAVY = np.append(np.round(HEAVY), np.nan)


@pytest.mark.parametrize("values", [PLAIN, rng.integers(0, 64, 3_000).astype(float)])
def test_without_frequent_values_edges_equal_scikit_learn(values: Any) -> None:
    assert_array_equal(compute_bin_edges(values, None, 64), theirs(values, 64))


def test_all_bins_are_used_between_scikit_learns() -> None:
    found, peer = compute_bin_edges(HEAVY, None, 64), theirs(HEAVY, 64)
    assert len(peer) < 45
    assert len(found) == 63
    assert np.isin(peer, found).all()
    counts = np.bincount(np.searchsorted(found, HEAVY[:-1]))
    assert (counts > 0).all()
    # Tails have finer bins than equal row counts would give, finest at their ends.
    assert counts[-1] < 10
    assert counts[-10:].max() < 0.6 * len(HEAVY) / 64


def test_edges_depend_on_order_and_weights_equal_repetitions() -> None:
    counts = [
        np.bincount(np.searchsorted(compute_bin_edges(values, None, 64), values))
        for values in (HEAVY[:-1], np.sign(HEAVY[:-1]) * HEAVY[:-1] ** 2)
    ]
    assert_array_equal(*counts)
    times = rng.integers(0, 4, len(HEAVY))
    often = compute_bin_edges(np.repeat(HEAVY, times), None, 64)
    assert_array_equal(compute_bin_edges(HEAVY, times.astype(float), 64), often)
    assert_array_equal(compute_bin_edges(HEAVY[::-1], times[::-1].astype(float), 64), often)


def test_unusual_values_are_separated() -> None:
    few = [-np.inf, -1e308, 0.5, 1.0, np.nextafter(1.0, 2.0), 2.0, 1e308, np.inf]
    values = np.append(np.zeros(500), few)
    found = compute_bin_edges(values, None, 8)
    assert len(found) == 7
    assert np.isfinite(found).all()
    assert len(np.unique(np.searchsorted(found, values))) == 8
