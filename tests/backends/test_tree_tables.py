"""Compiled loops of trees, at sizes around the numbers of rows and leaves of unrolled loops.

As in `test_kernel_tables`, each is compared with its definition in NumPy.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from daskml_dist.backends import forest_cuts as medians
from daskml_dist.backends import forest_grow, forest_kernels, tree_predict
from daskml_dist.backends.forest_cuts import BITS
from daskml_dist.ensemble import HistGradientBoostingRegressor
from daskml_dist.models.bins import Bins, hash_numbers
from daskml_dist.models.trees import ForestLeaves, RawForest, RawTrees, Tree, Trees
from tests.backends.test_kernel_tables import SIZES, around, dtypes
from tests.ensemble.test_tree_masks import bins_of, rows_of, tree_of

Array = NDArray[Any]

#: Rows of unrolled loops over trees, and of a small node.
ROWS = around(256, 512)


@cache
def compiled(function: Any) -> Any:
    """Return a separately compiled version of a function that is normally inlined in others."""
    return numba.njit(error_model="numpy")(function)


def leaves_of(tree: Tree, left: Any) -> Array:
    """Return the leaf of each row; `left(node, rows)` tells which of the rows go left at a node."""
    at, n = np.zeros(left.n, int), left.n
    while (tree.feature[at] >= 0).any():
        for node in np.unique(at[tree.feature[at] >= 0]):
            rows = np.flatnonzero(at == node)
            at[rows] = tree.left[node] + 1 - left(tree, node, rows)
    assert len(at) == n
    return at


class ByValues:
    """Rule by which rows go left: by values; unknown categories are missing."""

    def __init__(self, X: Array, bins: Bins) -> None:
        self.n, self._X, self._bins = len(X), X.astype(float), bins

    def __call__(self, tree: Tree, node: int, rows: Array) -> Array:
        j = tree.feature[node]
        values, edges = self._X[rows, j], self._bins.edges[j]
        missing, goes = np.isnan(values), values <= tree.threshold[node]
        if tree.category[node] >= 0:
            missing = ~np.isin(values, edges)
            number = np.where(missing, 0, np.searchsorted(edges, values))
            bits = np.unpackbits(
                tree.bitsets[tree.category[node]].view(np.uint8), bitorder="little"
            )
            goes = bits[number] == 1
        return np.where(missing, tree.missing_left[node], goes)


class ByBins:
    """Rule by which rows go left: by bins."""

    def __init__(self, rows: Array, missing: int) -> None:
        self.n, self._rows, self._missing = len(rows), rows, missing

    def __call__(self, tree: Tree, node: int, rows: Array) -> Array:
        b = self._rows[rows, tree.feature[node]]
        return np.where(b == self._missing, tree.missing_left[node], b <= tree.bin[node])


# --- predictions ------------------------------------------------------------------------------


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_boosting_at_numbers_of_rows_and_leaves_around_widths(n_outputs: int) -> None:
    rng = np.random.default_rng(n_outputs)
    bins = bins_of(rng, 255)
    X = rows_of(rng, bins, max(ROWS))
    left = ByValues(X, bins)
    # Leaves are bits of words of 32, or of one or several words of 64.
    for sizes in ((1, 2, 31, 32), (33, 63, 64, 5), (65, 127, 128, 129), (191, 192, 193, 256)):
        trees = [tree_of(rng, bins, m) for m in sizes]
        raw = RawTrees(Trees.from_trees(trees, n_outputs, bins), np.zeros(n_outputs))
        expected = np.zeros((len(X), n_outputs))
        for t, tree in enumerate(trees):
            expected[:, t % n_outputs] += tree.value[leaves_of(tree, left), 0]
        for n in ROWS:
            for add in (raw._add_walked, raw._add_masked):
                found = np.zeros((n, n_outputs))
                add(X[:n].copy(), 0, len(trees), found)
                np.testing.assert_array_equal(found, expected[:n], f"{n} rows, leaves {sizes}")


@dtypes
def test_forests_at_numbers_of_rows_around_widths(dtype: str) -> None:
    rng = np.random.default_rng(3)
    bins = Bins(tuple(np.sort(rng.normal(size=40)) for _ in range(7)), 255, np.zeros(7, bool))
    X = rng.normal(size=(max(ROWS), 7)).astype(dtype)
    X[rng.random(X.shape) < 0.1] = np.nan
    for n_values in (1, 3):
        tree_list = [_numbers_alone(tree_of(rng, bins_of(rng, 40), m)) for m in (1, 2, 40)]
        tree_list = [
            replace(t, value=rng.normal(size=(len(t.feature), n_values))) for t in tree_list
        ]
        trees = Trees.from_trees(tree_list, 1, bins)
        leaves = np.stack([leaves_of(tree, ByValues(X, bins)) for tree in tree_list], axis=1)
        values = [tree.value[at] for tree, at in zip(tree_list, leaves.T, strict=True)]
        assert tree_predict._ROWS_SIDE_BY_SIDE in SIZES
        for n in ROWS:
            found = RawForest(trees)(X[:n].copy())
            np.testing.assert_allclose(found, np.mean(values, axis=0)[:n], 1e-12, 1e-15)
            # Leaves are numbered in a different order of the nodes.
            numbers = ForestLeaves(trees)(X[:n].copy())
            for theirs, ours in zip(numbers.T, leaves[:n].T, strict=True):
                pairs = np.unique(np.column_stack([theirs, ours]), axis=0)
                assert len(pairs) == len(np.unique(theirs)) == len(np.unique(ours)), f"{n} rows"


def _numbers_alone(tree: Tree) -> Tree:
    """Return the same nodes without categories, with their depths; leaves point to themselves."""
    nodes = np.arange(len(tree.feature), dtype=np.int32)
    depth = np.zeros(len(nodes), np.int32)
    for k in np.flatnonzero(tree.feature >= 0):  # children come after their parents
        depth[tree.left[k]] = depth[tree.left[k] + 1] = depth[k] + 1
    left = np.where(tree.feature < 0, nodes, tree.left)
    return replace(tree, category=np.full(len(nodes), -1, np.int32), left=left, depth=depth)


def test_out_of_bag_predictions() -> None:
    rng, missing = np.random.default_rng(4), 250
    n = forest_kernels._ROWS_PER_TILE + 1
    bins = Bins(tuple(np.sort(rng.normal(size=40)) for _ in range(7)), missing, np.zeros(7, bool))
    rows = rng.integers(0, 41, (n, 8)).astype(np.uint8)
    rows[rng.random(rows.shape) < 0.1] = missing
    tree_list = [_numbers_alone(tree_of(rng, bins_of(rng, 40), m)) for m in (1, 9, 40)]
    nodes, keys = (
        (trees := Trees.from_trees(tree_list, 1, bins)).nodes,
        rng.integers(2**63, size=3, dtype=np.uint64),
    )
    table, numbers = np.array([2**62, 2**63], np.uint64), rng.permutation(10 * n)[:n]
    drawn = _draws(numbers, keys, table)
    expected, times = np.zeros((n, 1)), (drawn == 0).sum(axis=1)
    for t, tree in enumerate(tree_list):
        answers = tree.value[leaves_of(tree, ByBins(rows, missing)), :]
        expected += np.where(drawn[:, t : t + 1] == 0, answers, 0)
    for m in around(n - 1):
        sums, found = np.zeros((m, 1)), np.zeros(m, np.int64)
        forest_kernels.add_out_of_bag_answers(
            rows[:m], numbers[:m], keys, table, trees.roots, nodes.feature, nodes.bin, nodes.left,
            nodes.missing_left, missing, nodes.value, sums, found,
        )  # fmt: skip
        np.testing.assert_array_equal(found, times[:m], f"{m} rows")
        np.testing.assert_allclose(sums, expected[:m], 1e-12, 1e-14, err_msg=f"{m} rows")


def _draws(numbers: Array, keys: Array, table: Array) -> Array:
    """Return how often each tree draws each row."""
    hashes = hash_numbers(hash_numbers(numbers.astype(np.uint64) + np.uint64(1))[:, None] + keys)
    return np.asarray(np.searchsorted(table, hashes, side="right"))


# --- rows of a node ---------------------------------------------------------------------------


def lines_of(rng: Any, n: int, n_outputs: int, regression: bool) -> tuple[Array, Array]:
    """Return lines of drawn rows (see `forest_kernels`), and the bins of the rows."""
    rows = rng.integers(0, 256, (n, 8)).astype(np.uint8)
    weight = rng.integers(1, 4, n)
    head = np.column_stack([np.arange(n), (weight << 12) + 1])
    if regression:
        y = rng.integers(-40, 40, (n, n_outputs))
        parts = weight[:, None] * y, (weight[:, None] * y**2).sum(axis=1, keepdims=True)
        bits = np.ascontiguousarray(y.astype(float)).view(np.int64)
        return np.ascontiguousarray(np.hstack([head, *parts, bits])), rows
    head[:, 0] += rng.integers(0, 3, n) << 32
    # Lines of classes have an even width, padded by -1 for further outputs.
    more = np.full((n, n_outputs // 2 * 2), -1, np.int64)
    for k in range(1, n_outputs):
        more[:, k - 1] = 3 * k + rng.integers(0, 3, n)
    return np.ascontiguousarray(np.hstack([head, more])), rows


def sums_of(lines: Array, at: Array, n_places: int, n_outputs: int, regression: bool) -> Array:
    """Return the sums of the lines that are at each place: ``(n_places, n_sums)``."""
    found = np.zeros((n_places, 1 + n_outputs if regression else 3 * n_outputs), np.int64)
    if regression:
        for v in range(1 + n_outputs):
            np.add.at(found[:, v], at, lines[:, 1 + v])
        return found
    np.add.at(found, (at, lines[:, 0] >> 32), lines[:, 1])
    for k in range(2, lines.shape[1]):
        has_bin = lines[:, k] >= 0
        np.add.at(found, (at[has_bin], lines[has_bin, k]), lines[has_bin, 1])
    return found


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("n_outputs", [1, 2, 3])
def test_partition_of_the_rows_of_a_node(n_outputs: int, regression: bool) -> None:
    rng, missing = np.random.default_rng(5), 255
    for n in around(forest_grow._MAX_SPARSE_ROWS):
        lines, rows = lines_of(rng, n, n_outputs, regression)
        case, b = f"{n} rows", rows[:, 3].astype(int)
        hist = sums_of(lines, b, 256, n_outputs, regression)
        found, few = np.zeros_like(hist), np.zeros_like(hist)
        compiled(forest_kernels.add_lines)(rows, lines, 3, found)
        np.testing.assert_array_equal(found, hist, case)
        places = np.zeros(256, np.int64)
        seen = np.zeros(4, np.uint64)
        m = compiled(forest_grow._add_few_rows)(rows, lines, 3, few, places, seen, missing)
        np.testing.assert_array_equal(few, hist, case)
        np.testing.assert_array_equal(places[:m], np.unique(b[b != missing]), case)
        whole = sums_of(lines, np.zeros(n, int), 1, n_outputs, regression)[0]
        sums, reach = np.zeros(len(whole) + 2, np.int64), np.full(2 * n_outputs, -np.inf)
        forest_kernels.add_node_sums(lines, sums, reach)
        np.testing.assert_array_equal(sums[:-2], whole, case)
        assert sums[-2] == lines[:, 1].sum()
        if regression:
            y = lines[:, -n_outputs:].copy().view(float)
            ends = np.stack([-y.min(axis=0), y.max(axis=0)], axis=1).ravel()
            np.testing.assert_array_equal(reach, ends, case)
            assert sums[-1] == lines[:, 2 + n_outputs].sum()
        goes = np.where(b == missing, True, b <= 100)
        parted, spare = lines.copy(), np.empty_like(lines)
        left = forest_kernels.partition_lines(rows, parted, 3, 100, missing, 1, spare)
        assert left == goes.sum()
        np.testing.assert_array_equal(parted, np.concatenate([lines[goes], lines[~goes]]), case)


@pytest.mark.parametrize("regression", [False, True])
def test_rows_sampled_by_a_tree(regression: bool) -> None:
    rng = np.random.default_rng(6)
    table, key = np.array([2**62, 2**63, 2**63 + 2**62], np.uint64), np.uint64(77)
    for n, n_outputs in itertools.product(SIZES, (1, 2, 3)):
        lines, _ = lines_of(rng, n, n_outputs, regression)
        numbers, weight = rng.permutation(10 * n)[:n], rng.integers(0, 3, n)
        slot, factor = (lines[:, 0] >> 32).astype(np.int32), np.array([1, 2, 5])
        times = _draws(numbers, np.array([key]), table)[:, 0]
        for drawn in (times, np.ones(n, int)):
            thresholds = table if drawn is times else np.empty(0, np.uint64)
            out, more = np.empty_like(lines), np.ascontiguousarray(lines[:, 2:])
            m = forest_kernels.draw_tree_rows(
                numbers, key, thresholds, weight, factor, slot, more, 12, out
            )
            (at,) = np.nonzero((weight > 0) & (drawn > 0))
            expected = lines[at].copy()
            expected[:, 1] = ((weight * factor[slot] * drawn)[at] << 12) + 1
            if regression:  # weighted targets, and their squares
                expected[:, 2 : 3 + n_outputs] *= drawn[at][:, None]
            np.testing.assert_array_equal(out[:m], expected, f"{n} rows, {n_outputs} outputs")


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_medians(n_outputs: int) -> None:
    """The tree used to find them has levels in powers of two."""
    rng, facts = np.random.default_rng(7), np.zeros(12, np.int64)
    facts[BITS] = 12
    for n in range(1, 35):
        lines, _ = lines_of(rng, n, n_outputs, True)
        sums, error = np.zeros(n_outputs + 3, np.int64), 0.0
        compiled(medians.write_node_medians)(facts, 1.0, lines, sums)
        weight, y = lines[:, 1] >> 12, lines[:, -n_outputs:].copy().view(float)
        for k in range(n_outputs):
            every = np.repeat(y[:, k], weight)
            assert sums[1 + k : 2 + k].view(float)[0] == np.median(every), f"{n} rows"
            error += np.abs(every - np.median(every)).sum()
        assert sums[-1:].view(float)[0] == pytest.approx(error), f"{n} rows"


def test_categories_around_whole_words() -> None:
    """The categories that go left are bits in words of 64."""
    rng = np.random.default_rng(8)
    for n in (2, 63, 64, 65, 127, 128, 129, 192, 193, 255):
        codes = np.repeat(np.arange(n), 12)  # enough rows of each
        high = rng.random(n) < 0.5
        high[:2] = True, False
        y = np.where(high[codes], 3.0, -1.0)
        model = HistGradientBoostingRegressor(
            max_iter=1, learning_rate=1.0, max_leaf_nodes=2, min_samples_leaf=1,
            categorical_features=[0], early_stopping=False,
        )  # fmt: skip
        X = codes[:, None].astype(float)
        np.testing.assert_allclose(model.fit(X, y).predict(X), y, atol=1e-6, err_msg=f"{n}")
