"""Tree predictions by bins and leaf masks have the same bits as by descending the nodes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from daskml_dist.backends import row_slices
from daskml_dist.models import trees as tree_models
from daskml_dist.models.bins import Bins
from daskml_dist.models.trees import RawTrees, Tree, Trees

N_FEATURES = 7
CATEGORICAL = np.array([False] * 5 + [True] * 2)


def bins_of(rng: Any, max_bins: int) -> Bins:
    """Return bins of features, some of which have few or no edges."""
    counts = [max_bins - 1, max_bins - 1, 3, 1, 0]
    edges = [np.unique(rng.normal(size=n).astype(np.float32)).astype(float) for n in counts]
    categories = [np.arange(float(min(max_bins, 9))) * 2, np.arange(float(max_bins))]
    return Bins((*edges, *categories), max_bins, CATEGORICAL)


def tree_of(rng: Any, bins: Bins, n_leaves: int) -> Tree:
    """Return a tree of random splits of random leaves."""
    n = 2 * n_leaves - 1
    whole = {name: np.zeros(n, np.int32) for name in ("bin", "left", "depth")}
    feature, category = np.full(n, -1, np.int32), np.full(n, -1, np.int32)
    threshold, bitsets = np.zeros(n), []
    for n_nodes in range(1, n, 2):
        k = rng.choice(np.flatnonzero(feature[:n_nodes] < 0))
        j = feature[k] = rng.integers(N_FEATURES)
        whole["left"][k] = n_nodes
        if CATEGORICAL[j]:
            category[k] = len(bitsets)
            bitsets.append(rng.integers(0, 2**63, 4).astype(np.uint64))
        else:
            b = whole["bin"][k] = rng.integers(bins.counts[j])
            threshold[k] = bins.threshold(j, b)
    return Tree(
        feature=feature, threshold=threshold, missing_left=rng.random(n) < 0.5,
        category=category, value=rng.normal(size=(n, 1)), gain=np.zeros(n), weight=np.zeros(n),
        count=np.zeros(n, np.int64), bitsets=np.array(bitsets, np.uint64).reshape(-1, 4), **whole,
    )  # fmt: skip


def rows_of(rng: Any, bins: Bins, n: int) -> Any:
    """Return rows, some entries of which equal edges, or are missing, infinite or unknown."""
    X = rng.normal(size=(n, N_FEATURES))
    X[:, CATEGORICAL] = rng.integers(-1, 30, (n, 2))
    for j in range(4):
        X[: n // 3, j] = rng.choice(bins.edges[j], n // 3)
    for odd in (np.nan, np.inf, -np.inf, 1.5):
        X[rng.random(X.shape) < 0.05] = odd
    return X


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("leaves", "n_outputs", "max_bins", "n"),
    [
        ([31] * 6, 1, 255, 1300),
        ([32, 1, 2, 5], 1, 255, 513),
        ([33, 64, 40], 3, 255, 300),
        ([64, 1, 7, 64], 2, 20, 257),
        ([65, 3, 200, 128], 1, 255, 700),
        ([256, 1, 129, 64], 2, 20, 300),
        ([257, 3], 1, 255, 300),
    ],
)
def test_masks_and_descent_agree_bit_for_bit(
    leaves: list[int], n_outputs: int, max_bins: int, n: int, dtype: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(tree_models, "_MIN_WALKS_BEFORE_MASKS", 0)
    rng = np.random.default_rng(len(leaves))
    bins = bins_of(rng, max_bins)
    trees = Trees.from_trees([tree_of(rng, bins, m) for m in leaves], n_outputs, bins)
    raw = RawTrees(trees, rng.normal(size=n_outputs))
    X = rows_of(rng, bins, n).astype(dtype)
    assert (raw._word is None) == (max(leaves) > 256)
    found = raw(X), raw(np.asfortranarray(X))
    threads = []
    monkeypatch.setattr(tree_models, "_ROWS_A_THREAD", 100)
    monkeypatch.setattr(row_slices, "_count_allowed_threads", lambda: threads.append(3) or 3)
    assert raw(X).tobytes() == found[0].tobytes()
    assert threads
    part = np.zeros((n, n_outputs))
    raw.add(X, n_outputs, len(trees), part)
    monkeypatch.setattr(tree_models, "_MIN_MASKED_ROWS", n + 1)
    walked, walked_part = raw(X), np.zeros((n, n_outputs))
    raw.add(X, n_outputs, len(trees), walked_part)
    assert len(np.unique(walked)) > 3
    for one, other in ((found[0], walked), (found[1], walked), (part, walked_part)):
        assert one.tobytes() == other.tobytes()


def test_threads_are_used_only_in_the_main_thread_and_within_its_limit(monkeypatch: Any) -> None:
    def slices() -> list[slice]:
        found: list[slice] = []
        row_slices.run_over_threads(found.append, 10, 3)
        return sorted(found, key=lambda at: at.start)

    monkeypatch.setattr(row_slices.os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert slices() == [slice(0, 4), slice(4, 8), slice(8, 10)]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(slices).result() == [slice(0, 10)]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert slices() == [slice(0, 5), slice(5, 10)]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert slices() == [slice(0, 10)]
