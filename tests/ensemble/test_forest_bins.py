"""Edges of forests' bins."""

from __future__ import annotations

import numpy as np
import pytest

from daskml_dist.models.bins import compute_forest_bin_edges

rng = np.random.default_rng(0)


def rows_of_bins(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the number of rows in each bin."""
    return np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1)


def test_few_values_get_separate_bins() -> None:
    values = rng.integers(0, 255, 5000).astype(float)
    distinct = np.unique(values)
    np.testing.assert_array_equal(
        compute_forest_bin_edges(values, None, 255), (distinct[1:] + distinct[:-1]) / 2
    )


@pytest.mark.parametrize("kind", ["even", "long tail", "heavy values"])
def test_all_bins_are_used_and_ends_are_finer(kind: str) -> None:
    values = rng.normal(size=20_000)
    if kind == "long tail":
        values = np.exp(values * 3)
    if kind == "heavy values":
        values = np.round(np.exp(values * 3))
    counts = rows_of_bins(values, compute_forest_bin_edges(values, None, 64))
    assert len(counts) == 64
    assert (counts > 0).all()
    assert counts[-1] < len(values) / 64 / 5
    assert counts[-3:].sum() < 0.02 * len(values)
    if kind != "heavy values":
        assert counts.max() < 2 * len(values) / 64


def test_edges_depend_only_on_the_order_of_values() -> None:
    values = rng.normal(size=3000)
    plain = rows_of_bins(values, compute_forest_bin_edges(values, None, 50))
    bent = rows_of_bins(np.exp(values), compute_forest_bin_edges(np.exp(values), None, 50))
    np.testing.assert_array_equal(plain, bent)


def test_a_weight_of_k_equals_k_repetitions() -> None:
    values = np.append(rng.normal(size=1000), np.nan)
    times = rng.integers(0, 4, len(values))
    often = compute_forest_bin_edges(np.repeat(values, times), None, 40)
    np.testing.assert_array_equal(compute_forest_bin_edges(values, times.astype(float), 40), often)


def test_odd_values() -> None:
    for values in (np.full(9, np.nan), np.ones(9), np.empty(0)):
        assert len(compute_forest_bin_edges(values, None, 8)) == 0
    edges = compute_forest_bin_edges(np.array([-np.inf, -1e308, 1e308, np.inf]), None, 8)
    assert np.isfinite(edges).all()
    assert (np.diff(edges) > 0).all()
