"""Held-out rows: the requested number of each class, independent of the placement of rows."""

from __future__ import annotations

import numpy as np
import pytest

from daskml_dist.models.bins import draw_by_hash
from daskml_dist.solvers.binning import StratifiedHoldout, TrailingRows, allot_by_share

Y = np.random.default_rng(0).choice(3, 2_000, p=[0.75, 0.24, 0.01]).astype(float)


def held_out(n: int, cuts: list[int], y: np.ndarray = Y, seed: int = 0) -> StratifiedHoldout:
    """Return the held-out rows of rows in several parts."""
    first = np.array([0, *cuts])
    parts = np.split(y.astype(int), cuts)
    return StratifiedHoldout(
        first, np.array([np.bincount(part, minlength=3) for part in parts]), n, seed
    )


def test_each_class_has_its_share() -> None:
    held_out_rows = held_out(200, []).make_reader()(0, Y)
    counts, of_class = np.bincount(Y.astype(int)), np.bincount(Y[held_out_rows].astype(int))
    assert held_out_rows.sum() == 200
    np.testing.assert_allclose(of_class, counts / 10, atol=1)
    assert (held_out_rows != held_out(200, [], seed=1).make_reader()(0, Y)).any()


def test_the_rows_are_the_same_in_any_parts() -> None:
    whole = held_out(200, []).make_reader()(0, Y)
    for cuts, pieces in (([700], [300, 700, 1_500]), ([1, 2, 1_999], [1, 2, 64, 1_999])):
        is_held = held_out(200, cuts).make_reader()
        starts = [0, *pieces]
        found = [is_held(s, part) for s, part in zip(starts, np.split(Y, pieces), strict=True)]
        np.testing.assert_array_equal(np.concatenate(found), whole)


@pytest.mark.parametrize("n", [1, 10_000, 199_999])
def test_the_requested_number_of_many_rows_is_held_out(n: int) -> None:
    holdout = StratifiedHoldout(np.array([0]), np.array([[200_000]]), n, 3)
    is_held = holdout.make_reader()(0, np.zeros(200_000))
    assert is_held.sum() == n
    # The rows with the smallest random keys, compared with a full sort.
    smallest = np.argsort(draw_by_hash(np.arange(200_000), 3, 2))[:n]
    np.testing.assert_array_equal(np.flatnonzero(is_held), np.sort(smallest))


@pytest.mark.parametrize(
    ("counts", "n", "wanted"),
    [
        ([75, 24, 1], 10, [8, 2, 0]),
        ([1, 1, 98], 98, [0, 0, 97]),
        ([5, 5], 8, [4, 4]),
        ([0, 10], 3, [0, 3]),
        ([3, 3, 3], 1, [1, 0, 0]),
    ],
)
def test_held_out_rows_are_allotted_to_classes(
    counts: list[int], n: int, wanted: list[int]
) -> None:
    assert allot_by_share(np.array(counts), n).tolist() == wanted


def test_appended_validation_rows_have_no_class_weights() -> None:
    last = TrailingRows(5, np.array([2.0, 0.5, 0.0]))
    np.testing.assert_array_equal(last.make_reader()(3, np.zeros(4)), [False, False, True, True])
    found = last.restore_weight(np.array([0.0, 1.0, 2.0]), np.array([4.0, 1.5, 0.0]))
    np.testing.assert_array_equal(found, [2, 3, 0])
