"""Compiled loops of vector leaves equal NumPy at sizes around their widths."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from daskml_dist.backends import vector_tree_kernels
from daskml_dist.backends.host_trees import HostTrees
from daskml_dist.backends.trees import VECTOR, LeafPartition, SplitFacts, SplitLeaf, count_channels
from daskml_dist.ensemble import HistGradientBoostingClassifier
from daskml_dist.models.trees import RawTrees, Trees
from tests.backends.test_kernel_tables import around
from tests.backends.test_tree_tables import ByValues, leaves_of
from tests.ensemble.test_tree_masks import bins_of, rows_of, tree_of


def test_channels_fill_whole_vectors() -> None:
    assert [count_channels(1, constant) for constant in (True, False)] == [2, 3]
    for k in range(2, 20):
        for constant in (True, False):
            n = count_channels(k, constant)
            assert n % 4 == 0
            assert 0 <= n - (k + 1 if constant else 2 * k + 1) < 4


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("n_outputs", [2, 3, 4, 7, 8])
def test_histograms_of_all_sizes(n_outputs: int, constant: bool) -> None:
    rng = np.random.default_rng(n_outputs)
    d, n_bins, width = 5, 9, count_channels(n_outputs, constant)
    for n in around(vector_tree_kernels._ROWS_AHEAD, 64):
        rows = np.zeros((n, 8), np.uint8)
        rows[:, :d] = rng.integers(0, n_bins, (n, d))
        g = rng.normal(size=(n_outputs, n)).astype(np.float32)
        h = rng.random((0 if constant else n_outputs, n)).astype(np.float32)
        extra = {
            "given": (g, h), "packed": np.zeros((n, width), np.int32),
            "index": np.empty(n, np.int32), "spare": np.empty(n, np.int32),
        }  # fmt: skip
        columns = np.ascontiguousarray(rows[:, :d].T)
        binned = SimpleNamespace(n=n, rows=rows, columns=columns, extra=extra)
        (host,) = HostTrees().open_rows([binned], (d, n_bins, width))
        scales = np.exp2(rng.integers(18, 24, n_outputs).astype(float))
        host.pack_vectors(scales, scales / 2)
        parts = [np.rint(g.T * scales), np.rint(h.T * scales[: len(h)] / 2), np.ones((n, 1))]
        vectors = np.hstack(parts).astype(np.int64)

        def expected(chosen: Any, vectors: Any = vectors, rows: Any = rows) -> Any:
            found = np.zeros((d, n_bins, width), np.int64)
            for j in range(d):
                np.add.at(found[j, :, : vectors.shape[1]], rows[chosen, j], vectors[chosen])
            return found

        every = np.arange(n)
        np.testing.assert_array_equal(host.build_root_histogram(VECTOR, 0)[:, 0], expected(every))
        table = (rng.random(256) < 0.5).astype(np.uint8)
        for side in (0, 1):
            host.order_rows()
            hist, (middle,) = host.partition_leaves(
                [LeafPartition(2, table, slice(0, n), side)], VECTOR, 0
            )
            left = table[rows[:, 2]] == 1
            assert middle == left.sum()
            chosen = every[left if side == 0 else ~left]
            np.testing.assert_array_equal(hist[:, 0], expected(chosen), f"{n} rows")


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("n_outputs", [2, 5])
def test_best_splits_equal_an_exhaustive_search(n_outputs: int, constant: bool) -> None:
    rng = np.random.default_rng(n_outputs)
    d, n_bins, width = 3, 8, count_channels(n_outputs, constant)
    missing = np.array([0, 1, 1], np.uint8)
    for trial in range(20):
        hist = np.zeros((d, n_bins, width), np.int64)
        n_at = n_outputs if constant else 2 * n_outputs
        vectors = np.zeros((40, width), np.int64)
        vectors[:, :n_outputs] = rng.integers(-1000, 1000, (40, n_outputs))
        vectors[:, n_outputs:n_at] = rng.integers(1, 50, (40, n_at - n_outputs))
        vectors[:, n_at] = 1
        for j in range(d):
            # One bin is empty, and the first feature's last bin, of missing values, too.
            some = [b for b in range(n_bins - (j == 0)) if b != 3]
            np.add.at(hist[j], rng.choice(some, 40), vectors)
        g, n = hist[..., :n_outputs] * 0.5, hist[..., n_at]
        h = hist[..., n_outputs : 2 * n_outputs] * 0.25
        if constant:
            h = np.repeat(n[..., None], n_outputs, axis=2).astype(float)
        best, where = 0.0, None
        for j in range(d):
            orders = [(0, [*range(n_bins - 1), n_bins - 1])]
            if missing[j]:
                orders.append((1, [n_bins - 1, *range(n_bins - 1)]))
            for missing_left, order in orders:
                for cut in range(1, n_bins):
                    left, right = order[:cut], order[cut:]
                    if min(n[j, left].sum(), n[j, right].sum()) < 4:
                        continue
                    gain = sum(
                        (g[j, side].sum(axis=0) ** 2 / (h[j, side].sum(axis=0) + 2.0)).sum()
                        for side in (left, right)
                    )
                    if gain > best * (1 + 1e-12):
                        best, where = gain, (j, left, missing_left)
        assert where is not None
        sums = hist[0].sum(axis=0)
        gradients, n_rows = sums[:n_outputs], sums[n_at]
        hessians = [n_rows] * n_outputs if constant else sums[n_outputs : 2 * n_outputs]
        totals = np.array([*gradients, *hessians, n_rows])
        facts = SplitFacts(
            np.full(d, n_bins - 1, np.int32), missing, np.zeros(d, np.uint8), np.zeros(d, np.int8),
            2.0, 1e-3, 4,
        )  # fmt: skip
        scales = np.array([[0.5] * n_outputs, [1.0 if constant else 0.25] * n_outputs])
        splits = np.zeros((1, 10 + 2 * n_outputs), np.int64)
        leaf = SplitLeaf(hist, np.ones(d, np.uint8), totals, [0.0] * n_outputs, -np.inf, np.inf)
        HostTrees().find_best_splits([leaf], 0, facts, scales, splits)
        assert splits[0, :1].view(float)[0] == pytest.approx(best), trial
        j, left, missing_left = where
        assert splits[0, 1] == j
        np.testing.assert_array_equal(
            splits[0, 4 : 4 + n_outputs], hist[j, left].sum(axis=0)[:n_outputs]
        )
        assert splits[0, 4 + 2 * n_outputs] == n[j, left].sum()


def test_categories_around_whole_words() -> None:
    """The categories that go left are bits in words of 64."""
    rng = np.random.default_rng(8)
    for n in (3, 63, 64, 65, 127, 128, 129, 255):
        codes = np.repeat(np.arange(n), 12)  # enough rows of each
        classes = rng.integers(0, 3, n)
        classes[:3] = 0, 1, 2
        model = HistGradientBoostingClassifier(
            max_iter=3, learning_rate=1.0, max_leaf_nodes=3, min_samples_leaf=1,
            categorical_features=[0], early_stopping=False, multi_strategy="multi_output_tree",
        )  # fmt: skip
        X = codes[:, None].astype(float)
        np.testing.assert_array_equal(model.fit(X, classes[codes]).predict(X), classes[codes])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_predictions_of_all_numbers_of_rows(dtype: str) -> None:
    rng = np.random.default_rng(5)
    bins = bins_of(rng, 255)
    sizes = around(vector_tree_kernels._TREE_ROWS)
    X = rows_of(rng, bins, max(sizes)).astype(dtype)
    left = ByValues(X, bins)
    for n_outputs in (2, 5):
        trees = [tree_of(rng, bins, m) for m in (1, 2, 31, 70)]
        trees = [replace(t, value=rng.normal(size=(len(t.feature), n_outputs))) for t in trees]
        raw = RawTrees(Trees.from_trees(trees, 1, bins), np.arange(float(n_outputs)))
        expected = np.tile(np.arange(float(n_outputs)), (len(X), 1))
        for tree in trees:
            expected += tree.value[leaves_of(tree, left)]
        for n in sizes:
            np.testing.assert_array_equal(raw(X[:n].copy()), expected[:n], f"{n} rows")
