"""CUDA kernels of trees (compiled by g++) equal the CPU's compiled loops, bit for bit."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from daskml_dist.backends import cupy_trees, host_trees, kernels
from daskml_dist.backends.cupy_trees import CupyTrees, pack_nodes
from daskml_dist.backends.host_trees import HostTrees
from daskml_dist.backends.tree_kernels import GRADIENT_LOOPS
from daskml_dist.backends.trees import (
    CONSTANT,
    EXACT,
    ROUNDED,
    LeafPartition,
    SplitFacts,
    SplitLeaf,
)
from daskml_dist.losses import (
    AbsoluteError,
    Gamma,
    LogLoss,
    Poisson,
    Quantile,
    SquaredError,
)
from daskml_dist.models.bins import Bins
from daskml_dist.models.trees import RawForest, RawTrees, Tree, Trees
from daskml_dist.solvers.boosting_scores import RowBoostLoss
from tests.backends.kernel_problems import needs_compiler
from tests.cuda_emulation import EmulatedCupy

pytestmark = needs_compiler
MODES = {"constant": CONSTANT, "exact": EXACT, "rounded": ROUNDED}


class _Guards:
    """NumPy in place of CuPy; new arrays are between sentinels."""

    def __init__(self, cupy, guarded):
        self._cupy, self._guarded = cupy, guarded

    def __getattr__(self, name):
        return getattr(self._cupy, name)

    def empty(self, shape, dtype):
        return self._guarded.unset(shape, dtype)

    def zeros(self, shape, dtype):
        return self._guarded(np.zeros(shape, dtype))

    def empty_like(self, array):
        return self.empty(array.shape, array.dtype)

    def asarray(self, array, order="K"):
        return self._guarded(array)


@pytest.fixture
def backend(guarded):
    """Provide the GPU backend on NumPy and emulated kernels."""
    backend = EmulatedCupy()
    backend._cp = _Guards(backend._cp, guarded)
    return backend


def _packed(mode, n, rng, largest):
    """Return gradients and hessians packed by `tree_kernels.pack_gradients`."""
    g_bits, h_bits = (12, 12) if mode == ROUNDED else (30, 24)
    g = rng.integers(-(1 << g_bits), (1 << g_bits) + 1, n)
    h = rng.integers(0, (1 << h_bits) + 1, n)
    if largest:
        g[:], h[:] = -(1 << g_bits), 1 << h_bits
    if mode == CONSTANT:
        return (g << 16) + 1
    return (g << 32) + h if mode == EXACT else (g << 38) + (h << 13) + 1


def _lane_rows(n, d, mode, seed=0, largest=False, n_bins=256, k=1, weighted=False):
    """Return a lane's rows, also for tests of the GPU, which use the host's packed gradients."""
    rng = np.random.default_rng(seed)
    rows = np.zeros((n, -(-d // 8) * 8), np.uint8)
    rows[:, :d] = 7 if largest else rng.integers(0, n_bins, (n, d))
    extra = {
        "packed": np.tile(_packed(mode, n, rng, largest), (k, 1)),
        "raw": 3 * rng.normal(size=(k, n)),
        "index": np.empty(n, np.int32),
        "spare": np.empty(n, np.int32),
    }
    return SimpleNamespace(
        n=n, rows=rows, columns=np.ascontiguousarray(rows[:, :d].T), extra=extra,
        allocate_zeros=np.zeros, bins=SimpleNamespace(counts=np.full(d, n_bins - 1, np.int32)),
        device_bins=None,
        y=rng.gamma(2.0, size=n), salt=rng.integers(2**32, size=n, dtype=np.uint32),
        weight=rng.integers(0, 4, n).astype(float) if weighted else None,
    )  # fmt: skip


def _both(binned, shape, backend):
    """Return the same rows on the CPU and on the GPU."""
    device_binned = SimpleNamespace(**vars(binned))
    device_binned.extra = {name: array.copy() for name, array in binned.extra.items()}
    (device,) = CupyTrees(backend).open_rows([device_binned], shape)
    device._packed[:] = binned.extra["packed"]
    return HostTrees().open_rows([binned], shape)[0], device, device_binned


def _table(rng, share):
    return (rng.random(256) < share).astype(np.uint8)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize(("n", "d", "n_bins"), [(1, 1, 3), (1030, 3, 5), (3001, 19, 256)])
def test_rows_are_partitioned_and_summed(mode, n, d, n_bins, backend, monkeypatch):
    binned = _lane_rows(n, d, mode, n_bins=n_bins)
    shape = d, n_bins, 2 if mode == CONSTANT else 3
    host, device, device_binned = _both(binned, shape, backend)
    few = host.build_root_histogram(mode, 0).copy()
    np.testing.assert_array_equal(device.build_root_histogram(mode, 0), few)
    monkeypatch.setattr(host_trees, "_MAX_ROWS_IN_NUMPY", 0)
    np.testing.assert_array_equal(host.build_root_histogram(mode, 0), few)
    rng = np.random.default_rng(1)
    at = [slice(0, n)]
    for sides in ([0], [1, -1], [-1, 0, 1, 1]):
        # In the last round some leaves have no rows, and others have them on one side only.
        shares = [1.0, 0.0, *[0.6] * 4][-len(at) :] if len(at) > 2 else [0.5, 0.3]
        parts = [
            LeafPartition(int(rng.integers(d)), _table(rng, share), of_leaf, side)
            for share, of_leaf, side in zip(shares, at, sides, strict=False)
        ]
        expected, middles = host.partition_leaves(parts, mode, 0)
        found, starts = device.partition_leaves(parts, mode, 0)
        np.testing.assert_array_equal(found, expected)
        assert starts == middles
        # The second time rows are in order already, and known sums are not requested.
        for part, middle in zip(parts, middles, strict=True):
            part.n_left = middle - part.row_slice.start
        found, starts = device.partition_leaves(parts, mode, 0)
        np.testing.assert_array_equal(found, expected)
        assert starts == middles
        np.testing.assert_array_equal(device._index, binned.extra["index"])
        at = [
            s for a, m in zip(at, middles, strict=False)
            for s in (slice(a.start, m), slice(m, a.stop))
        ]  # fmt: skip
    values = rng.normal(size=len(at))
    for lane in (host, device):
        lane.add_leaf_values(0, at, values)
    assert "raw" not in device_binned.extra  # the host's copy is outdated
    device.fetch_raw_predictions()
    np.testing.assert_array_equal(device_binned.extra["raw"], binned.extra["raw"])
    np.testing.assert_array_equal(device.find_row_leaves(at), host.find_row_leaves(at))


#: Around the widths of unrolled loops (2 and 4 rows), of what they ask for ahead (16), and of a
#: byte (256); up to 3 rows, which are no more entries than there are bins, are added one by one.
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 255, 256, 257, 258, 259, 275)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_histograms_at_sizes_around_unrolled_loops(mode, monkeypatch):
    for n, small in itertools.product(SIZES, (0, host_trees._MAX_ROWS_IN_NUMPY)):
        monkeypatch.setattr(host_trees, "_MAX_ROWS_IN_NUMPY", small)
        binned, d = _lane_rows(n, 3, mode, seed=n, n_bins=5), 3
        # A feature of two bins and a last bin of missing values.
        few = np.where(binned.columns[1] < 4, binned.columns[1] & 1, 4)
        binned.rows[:, 1], binned.columns[1], binned.bins.counts[1] = few, few, 2
        (lane,) = HostTrees().open_rows([binned], (d, 5, 2 if mode == CONSTANT else 3))
        found = lane.build_root_histogram(mode, 0)
        packed, expected = binned.extra["packed"][0], np.zeros((d, 5, 3), np.int64)
        g_at, h_bits = {CONSTANT: (16, 0), EXACT: (32, 32), ROUNDED: (38, 25)}[mode]
        h = (packed >> (13 if mode == ROUNDED else 0)) & ((1 << h_bits) - 1)
        for j in range(d):
            for channel, values in enumerate((packed >> g_at, h, np.ones(n, np.int64))):
                np.add.at(expected[j, :, channel], binned.columns[j], values)
        wanted = expected[..., [0, 2]] if mode == CONSTANT else expected
        np.testing.assert_array_equal(found[:, 0], wanted, f"{n} rows, small is {small}")


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_packed_sums_do_not_overflow(mode, backend, monkeypatch):
    # The maximum number of rows in a block, all in one bin, with the largest values.
    monkeypatch.setattr(cupy_trees, "_MIN_CHUNK_ROWS", cupy_trees._MAX_CHUNK_ROWS)
    binned = _lane_rows(2 * cupy_trees._MAX_CHUNK_ROWS + 100, 1, mode, largest=True)
    host, device, _ = _both(binned, (1, 256, 2 if mode == CONSTANT else 3), backend)
    found = device.build_root_histogram(mode, 0)
    np.testing.assert_array_equal(found, host.build_root_histogram(mode, 0))
    assert found[0, 0, 7, -1] == binned.n


LOSSES = {
    "squared_error": RowBoostLoss(SquaredError()),
    "absolute_error": RowBoostLoss(AbsoluteError()),
    "quantile": RowBoostLoss(Quantile(0.7)),
    "poisson": RowBoostLoss(Poisson()),
    "gamma": RowBoostLoss(Gamma()),
    "binomial": RowBoostLoss(LogLoss()),
    "multinomial": RowBoostLoss(LogLoss(), 9),
}


def test_each_loss_has_a_kernel():
    assert tuple(LOSSES) == kernels.TREE_LOSSES
    assert all(loss.kernel == name for name, loss in LOSSES.items())


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients(name, weighted, backend):
    loss = LOSSES[name]
    k, constant = loss.n_outputs, loss.constant_hessian and not weighted
    for n in (300, 1, 0):
        binned = _lane_rows(n, 1, CONSTANT, k=k, weighted=weighted)
        if name.endswith("nomial"):
            binned.y = np.floor(binned.y).clip(max=max(k, 2) - 1)
        binned.extra["raw"][:, :8] = [0, -0.0, 40, -40, 700, -700, 1e-310, 1e-40][:n]
        host, device, _ = _both(binned, (1, 256, 2 if constant else 3), backend)
        with np.errstate(over="ignore"):
            largest = host.make_gradients(loss, constant)
        np.testing.assert_array_equal(device.make_gradients(loss, constant), largest)
        gradients = binned.extra["given"]
        np.testing.assert_array_equal(device._g, gradients[0])
        assert constant or (device._h == gradients[1]).all()
        for values in (
            gradients[0],
            device._g,
            *((gradients[1], device._h) if not constant else ()),
        ):
            values[~np.isfinite(values)] = 0  # such a fit ends before gradients are packed
        for c, mode in itertools.product(range(k), [CONSTANT] if constant else [EXACT, ROUNDED]):
            most = [np.abs(values[c]).max(initial=1e-30) for values in gradients if len(values)]
            scales = [2.0 ** (12 - int(np.frexp(value)[1])) for value in (*most, 1.0)[:2]]
            sums = [
                lane.pack_output_gradients(c, mode, *scales, 0x9E3779B9) for lane in (device, host)
            ]
            assert sums[0] == sums[1]
            np.testing.assert_array_equal(device._packed[c], binned.extra["packed"][c])


@pytest.mark.parametrize("name", ["poisson", "binomial"])
def test_nan_is_the_largest_value(name, backend):
    binned = _lane_rows(100, 1, CONSTANT)
    binned.extra["raw"][0, 70] = np.nan
    host, device, _ = _both(binned, (1, 256, 3), backend)
    for lane in (host, device):
        assert np.isnan(lane.make_gradients(LOSSES[name], False)).all()


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("name", GRADIENT_LOOPS)
def test_compiled_gradients_equal_those_of_the_loss(name, weighted, monkeypatch):
    """Bit for bit, on both sides of the end of a tile."""
    monkeypatch.setattr(host_trees, "_MAX_ROWS_IN_NUMPY", 0)
    loss, n = LOSSES[name], 2_500
    binned = _lane_rows(n, 1, CONSTANT, weighted=weighted)
    binned.y = np.arange(n) % 2.0
    binned.extra["raw"][0] = 5 * np.random.default_rng(0).normal(size=n)
    (lane,) = HostTrees().open_rows([binned], (1, 256, 3))
    largest = lane.make_gradients(loss, False)
    wanted = [
        part * (binned.weight if weighted else 1.0)
        for part in loss.gradients(binned.y, binned.extra["raw"])
    ]
    for gradients, part, most in zip(binned.extra["given"], wanted, largest, strict=True):
        np.testing.assert_array_equal(gradients, part.astype(np.float32))
        assert most == np.abs(gradients).max()


def _histograms(rng, n_leaves, d, n_bins, counts, missing, channels, few):
    """Return histograms with the same totals in all features; few rows give many equal gains."""
    n = 90 if few else 4000
    hist = np.zeros((d, n_leaves, n_bins, channels), np.int64)
    totals = np.zeros((n_leaves, 3), np.int64)
    for leaf in range(1, n_leaves):  # the first has no rows
        g = rng.integers(-3, 4, n) if few else rng.integers(-(2**30), 2**30, n)
        h = np.ones(n, int) if channels == 2 else rng.integers(0, 3 if few else 2**24, n)
        for j in range(d):
            bins = rng.integers(0, counts[j], n) if counts[j] else np.full(n, n_bins - 1)
            bins[(rng.random(n) < 0.2) & (missing[j] > 0)] = n_bins - 1
            np.add.at(hist[j, leaf, :, 0], bins, g)
            np.add.at(hist[j, leaf, :, -1], bins, 1)
            if channels == 3:
                np.add.at(hist[j, leaf, :, 1], bins, h)
        totals[leaf] = g.sum(), h.sum(), n
    return hist, totals


@pytest.mark.parametrize("n_bins", [4, 33, 256])
@pytest.mark.parametrize("channels", [2, 3])
@pytest.mark.parametrize("few", [True, False])
def test_best_splits(n_bins, channels, few, backend):
    rng = np.random.default_rng(n_bins + channels)
    d, n_leaves = 21, 5
    counts = rng.integers(1, n_bins, d).astype(np.int32)
    counts[0], counts[1] = n_bins - 1, 1
    missing = (rng.random(d) < 0.5).astype(np.uint8)
    categorical = (rng.random(d) < 0.3).astype(np.uint8)
    categorical[2], counts[2], missing[2] = 1, 0, 1
    signs = np.where(categorical, 0, rng.integers(-1, 2, d)).astype(np.int8)
    hist, totals = _histograms(rng, n_leaves, d, n_bins, counts, missing, channels, few)
    scales = np.array([1.0, 1.0 if channels == 2 else 10.0] if few else [2.0**-30, 2.0**-20])
    of_categories = 0
    for least_rows, l2, low in ((1, 0.0, -np.inf), (3, 1.0, -0.05)):
        facts = SplitFacts(counts, missing, categorical, signs, l2, 1e-3, least_rows)
        allowed = (rng.random((n_leaves, d)) < 0.5).astype(np.uint8)
        allowed[:2], allowed[2] = 1, categorical
        leaves = [
            SplitLeaf(hist[:, k], allowed[k], totals[k], 0.01 * k, low, np.inf)
            for k in range(n_leaves)
        ]
        splits = np.zeros((2, n_leaves, 12), np.int64)
        HostTrees().find_best_splits(leaves, 0, facts, scales, splits[0])
        CupyTrees(backend).find_best_splits(leaves, 0, facts, scales, splits[1])
        # For numeric features the loop leaves the values of earlier categorical ones there.
        splits[:, :, 8:] *= splits[:, :, 7:8]
        np.testing.assert_array_equal(splits[1], splits[0])
        gains = splits[0, :, 0].view(np.float64)
        assert gains[0] == -1
        assert (gains[[1, 3, 4]] > 0).any()
        of_categories += splits[0, :, 7].sum()
    assert of_categories or n_bins > 90  # a category with too few rows


@pytest.mark.parametrize("feature", [0, 1])
def test_splits_with_the_minimum_number_of_rows(feature, backend):
    # Of 90 rows half must go left: of a number there is one such split; of six categories of 15
    # rows, four of which are alike, those that come first go left.
    hist = np.zeros((2, 1, 8, 2), np.int64)
    hist[0, 0, :6, 0], hist[0, 0, :6, 1] = [-30, -30, -30, -30, 0, 60], 15
    hist[1, 0, :3, 0], hist[1, 0, :3, 1] = [-50, -10, 0], [40, 5, 45]
    each = np.zeros(2, np.uint8)
    counts, categorical = np.array([6, 3], np.int32), np.array([1, 0], np.uint8)
    facts = SplitFacts(counts, each, categorical, each.view(np.int8), 0.0, 1e-3, 45)
    allowed, totals = (np.arange(2) == feature).astype(np.uint8), np.array([-60, 90, 90])
    leaves = [SplitLeaf(hist[:, 0], allowed, totals, 0.0, -np.inf, np.inf)]
    splits = np.zeros((2, 1, 12), np.int64)
    for device, splits_of_device in zip((HostTrees(), CupyTrees(backend)), splits, strict=True):
        device.find_best_splits(leaves, 0, facts, np.ones(2), splits_of_device)
    np.testing.assert_array_equal(splits[1], splits[0])
    expected = (
        [feature, 0, 0, -90, 45, 45, 1, 0b111] if feature == 0 else [1, 1, 0, -60, 45, 45, 0, 0]
    )
    assert splits[0, 0, 1:9].tolist() == expected


def _trees(rng, n_trees, d, n_values, with_categories):
    """Return random trees with an odd number of leaves each, and their bins."""
    edges = [np.sort(rng.normal(size=40)) for _ in range(d)]
    categorical = np.zeros(d, bool)
    if with_categories:
        categorical[1] = True
        edges[1] = np.array([-2.0, 0.0, 1.0, 3.0, 70.0])
    trees = []
    for _ in range(n_trees):
        n_inner = int(rng.integers(0, 12))
        n = 2 * n_inner + 1
        feature, left = np.full(n, -1, np.int32), np.arange(n, dtype=np.int32)
        bin_, category, open_ = np.zeros(n, np.int32), np.full(n, -1, np.int32), [0]
        threshold, bitsets = np.full(n, np.inf), []
        for k in range(n_inner):
            node = open_.pop(int(rng.integers(len(open_))))
            j = feature[node] = rng.integers(d)
            left[node] = 2 * k + 1
            open_ += [2 * k + 1, 2 * k + 2]
            if categorical[j]:
                category[node] = len(bitsets)
                bitsets.append([rng.integers(32), 0, 0, 0])
            else:
                bin_[node] = rng.integers(40)
                threshold[node] = edges[j][bin_[node]]
        trees.append(
            Tree(
                feature, bin_, threshold, left, rng.random(n) < 0.5, category,
                rng.normal(size=(n, n_values)), np.zeros(n), np.ones(n, np.int64), np.ones(n),
                np.full(n, 12, np.int32), np.array(bitsets, np.uint64).reshape(-1, 4),
            )
        )  # fmt: skip
    return trees, Bins(tuple(edges), 255, categorical)


def _rows(rng, n, bins, dtype):
    X = rng.normal(size=(n, bins.n_features)).astype(dtype)
    for j, edges in enumerate(bins.edges):
        at = rng.random(n) < 0.3  # on a threshold, or a known category
        X[at, j] = rng.choice(edges, at.sum())
    X[rng.random(X.shape) < 0.1] = np.nan
    X[0], X[1] = np.inf, -np.inf
    return X


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_boosting_predicts(dtype, n_outputs, backend):
    rng = np.random.default_rng(n_outputs)
    trees, bins = _trees(rng, 6, 4, 1, with_categories=True)
    raw = RawTrees(Trees.from_trees(trees, n_outputs, bins), rng.normal(size=n_outputs))
    X = _rows(rng, 300, bins, dtype)
    np.testing.assert_array_equal(raw.on_device(backend, dtype)(X), raw(X))
    np.testing.assert_array_equal(raw.on_device(backend, dtype)(X[:1]), raw(X[:1]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_values", [1, 3])
def test_forests_predict(dtype, n_values, backend):
    rng = np.random.default_rng(n_values)
    trees, bins = _trees(rng, 7, 4, n_values, with_categories=False)
    raw = RawForest(Trees.from_trees(trees, 1, bins))
    X = _rows(rng, 300, bins, dtype)
    np.testing.assert_array_equal(raw.on_device(backend, dtype)(X), raw(X))


def test_nodes_take_16_bytes():
    tree_list, bins = _trees(np.random.default_rng(0), 2, 4, 1, with_categories=True)
    trees = Trees.from_trees(tree_list, 1, bins)
    assert pack_nodes(trees.nodes).nbytes == 16 * len(trees.nodes.feature)
