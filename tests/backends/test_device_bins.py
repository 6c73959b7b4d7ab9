"""Bins made by GPU kernels (compiled by g++) equal those of the CPU's compiled loops."""

from __future__ import annotations

import numpy as np
import pytest

from daskml_dist.backends import cupy_bins
from daskml_dist.backends.binning import find_distinct_values, take_rows
from daskml_dist.backends.cupy_backend import CupyBackend
from daskml_dist.backends.cupy_bins import DeviceBins, join_bins, order_edges
from daskml_dist.backends.forest_kernels import widen_bin_reach
from daskml_dist.backends.tree_predict import write_bins
from daskml_dist.errors import DeviceMemoryError
from daskml_dist.models.bins import Bins
from daskml_dist.solvers.forest_rows import ForestRows
from tests.backends.kernel_problems import needs_compiler
from tests.backends.test_tree_kernels import _Guards
from tests.cuda_emulation import EmulatedCupy
from tests.fake_cupy import DeviceArray, FakeCupy, plug_in


@pytest.fixture(
    params=[
        pytest.param("emulated", marks=needs_compiler),
        pytest.param("cupy", marks=pytest.mark.gpu),
    ]
)
def backend(request, guarded):
    """Provide the GPU backend, or its stand-in on NumPy with emulated kernels."""
    if request.param == "cupy":
        return CupyBackend()
    backend = EmulatedCupy()
    backend._cp = _Guards(backend._cp, guarded)
    return backend


def _bins(rng, d, max_bins, dtype, with_categories):
    """Return bins with every number of edges, some of which need float64."""
    edges, categorical = [], np.zeros(d, bool)
    for j in range(d):
        n = [max_bins - 1, 0, 1, int(rng.integers(max_bins))][j % 4]
        values = rng.normal(size=n) * 10.0 ** rng.integers(-3, 4)
        if j % 2:
            values = values.astype(dtype).astype(np.float64)
        if n > 12:
            # Numbers below 1e-38, zero, numbers not representable in float32, and the largest.
            values[:8] = [1e-40, -1e-40, 1e-45, 0.0, 1e300, -1e300, 1 + 2**-30, 3.5e38]
        if with_categories and j % 3 == 2:
            categorical[j] = True
            values = np.arange(n + 1) * (0.5 if j % 2 else 0.1)
        edges.append(np.unique(values))
    return Bins(tuple(edges), max_bins, categorical)


def _rows(rng, n, bins, dtype):
    """Return values between, on and next to edges, and special values."""
    X = (rng.normal(size=(n, bins.n_features)) * 3).astype(dtype)
    for j, edges in enumerate(bins.edges):
        if len(edges):
            with np.errstate(over="ignore"):
                near_edges = rng.choice(edges, n).astype(dtype)
            near_edges = np.nextafter(near_edges, rng.choice([-np.inf, np.inf], n).astype(dtype))
            with np.errstate(over="ignore"):
                exact = rng.choice(edges, n).astype(dtype)
            kind = rng.random(n)
            X[:, j] = np.where(kind < 0.3, exact, np.where(kind < 0.5, near_edges, X[:, j]))
    odd = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, -1e-45, 1e-39, np.finfo(dtype).max]
    at = rng.random(X.shape) < 0.2
    X[at] = rng.choice(np.array(odd, dtype), at.sum())
    return X


def _on_host(X, bins):
    """Return bins, and which features have missing values, by the compiled loop."""
    n, d = X.shape
    rows, columns = np.zeros((n, -(-d // 8) * 8), np.uint8), np.empty((d, n), np.uint8)
    has_missing = np.zeros(d, np.uint8)
    write_bins(
        X, bins.table, bins.n_edges, bins.categorical, bins.max_bins, rows, columns, has_missing
    )  # fmt: skip
    return rows, columns, has_missing


def _check(device_bins, X, bins):
    """Check that bins equal those of the host byte for byte."""
    rows, columns, has_missing = _on_host(X, bins)
    found_rows, found_columns = np.zeros_like(rows), np.zeros_like(columns)
    device_bins.copy_rows(found_rows)
    device_bins.copy_columns(found_columns)
    np.testing.assert_array_equal(found_rows, rows)
    np.testing.assert_array_equal(found_columns, columns)
    np.testing.assert_array_equal(device_bins.fetch_missing(), has_missing)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("max_bins", [2, 37, 255])
@pytest.mark.parametrize("with_categories", [False, True])
def test_bins_equal_those_of_the_host(dtype, max_bins, with_categories, backend):
    rng = np.random.default_rng(max_bins)
    for n, d in ((1, 1), (7, 3), (1030, 8), (300, 28), (57, 33), (130, 70), (2111, 4)):
        bins = _bins(rng, d, max_bins, dtype, with_categories)
        X = _rows(rng, n, bins, dtype)
        device_bins = DeviceBins(bins, backend)
        device_bins.add(X)
        _check(device_bins, X, bins)


def test_each_number_of_features(backend):
    rng = np.random.default_rng(0)
    for d in range(1, 71):
        bins = _bins(rng, d, 9, np.float32, with_categories=d % 2 == 0)
        X = _rows(rng, 40, bins, np.float32)
        device_bins = DeviceBins(bins, backend)
        device_bins.add(X)
        _check(device_bins, X, bins)


@pytest.mark.parametrize("n_edges", [0, 1, 2, 127, 128, 254, 255])
def test_each_bin_is_found(n_edges, backend):
    edges = np.arange(n_edges, dtype=float)
    bins = Bins((edges,), 255, np.zeros(1, bool))
    X = np.repeat(np.arange(-1.0, n_edges + 1), 2).astype(np.float32)
    X[1::2] += 0.5
    device_bins = DeviceBins(bins, backend)
    device_bins.add(X[:, None])
    found = np.empty((len(X), 8), np.uint8)
    device_bins.copy_rows(found)
    np.testing.assert_array_equal(found[:, 0], np.searchsorted(edges, X))
    # The last of 256 bins is for missing values.
    assert device_bins.fetch_missing()[0] == (n_edges == 255)


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_of_any_layout_and_address(dtype, guarded):
    """Loads of 16 bytes are used only for aligned rows."""
    rng, backend = np.random.default_rng(1), EmulatedCupy()
    for d in (1, 2, 4, 6, 12, 28):
        bins = _bins(rng, d, 30, dtype, with_categories=True)
        X = _rows(rng, 90, bins, dtype)
        shifted = guarded(np.empty((X.size + 1) * X.itemsize, np.uint8))[X.itemsize :]
        shifted = shifted.view(dtype).reshape(X.shape)
        shifted[...] = X
        wide = np.zeros((90, 2 * d), dtype)
        wide[:, ::2] = X
        device_bins = DeviceBins(bins, backend)
        for rows in (X[:0], X, shifted, np.asfortranarray(X), wide[:, ::2], X[5:, :]):
            if len(rows):
                device_bins.add(rows)
        _check(device_bins, np.concatenate([X, X, X, X, X[5:]]), bins)


def test_blocks_share_work_among_more_units_than_a_device_has(backend, monkeypatch):
    """A block processes several units of different features in turn."""
    monkeypatch.setattr(cupy_bins, "_MIN_CHUNK_ROWS", 8)
    monkeypatch.setattr(cupy_bins, "_BLOCKS_PER_MULTIPROCESSOR", 30)
    rng = np.random.default_rng(2)
    for dtype, d in ((np.float32, 100), (np.float64, 41)):
        bins = _bins(rng, d, 60, dtype, with_categories=True)
        X = _rows(rng, 411, bins, dtype)
        device_bins = DeviceBins(bins, backend)
        device_bins.widen_reach(device_bins.add(X), None)
        _check(device_bins, X, bins)
        _check_reach(device_bins, [X], [None], bins)


def _check_reach(device_bins, blocks, counts, bins):
    """Check that smallest and largest values equal those of the host."""
    low, high = np.full((bins.n_features, 256), np.inf), np.full((bins.n_features, 256), -np.inf)
    for X, which in zip(blocks, counts, strict=True):
        which = np.ones(len(X), bool) if which is None else which
        widen_bin_reach(X[which], _on_host(X, bins)[0][which], low, high)
    found = device_bins.fetch_reach()
    np.testing.assert_array_equal(found[0], low)
    np.testing.assert_array_equal(found[1], high)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_smallest_and_largest_values_of_bins(dtype, backend):
    rng = np.random.default_rng(3)
    for d in (1, 9, 30):
        bins = _bins(rng, d, 20, dtype, with_categories=False)
        blocks = [_rows(rng, n, bins, dtype) for n in (300, 1, 17)]
        counts = [rng.random(300) < 0.5, None, np.zeros(17, bool)]
        device_bins = DeviceBins(bins, backend)
        for X, which in zip(blocks, counts, strict=True):
            device_bins.widen_reach(device_bins.add(X), which)
        _check_reach(device_bins, blocks, counts, bins)


def test_bins_of_lanes_are_joined_and_stored_once(backend):
    rng = np.random.default_rng(4)
    bins = _bins(rng, 5, 20, np.float32, with_categories=False)
    lanes, blocks = [], []
    for sizes in ([30, 4], [], [9]):
        blocks_of_lane = [_rows(rng, n, bins, np.float32) for n in sizes]
        lane = ForestRows(
            None, np.zeros(sum(sizes), np.int64), None, None, np.zeros((5, 256)), None
        )  # fmt: skip
        lane.device_bins = DeviceBins(bins, backend) if blocks_of_lane else None
        for X in blocks_of_lane:
            lane.device_bins.add(X)
        lanes.append(lane)
        blocks += blocks_of_lane
    # And one lane whose rows were binned by the host.
    X = _rows(rng, 6, bins, np.float32)
    lanes.append(
        ForestRows(_on_host(X, bins)[0], np.zeros(6), None, None, np.zeros((5, 256)), None)
    )
    expected = _on_host(np.concatenate([*blocks, X]), bins)[0]
    joined = join_bins(lanes, backend)
    np.testing.assert_array_equal(backend.to_numpy(joined), expected)
    for lane, at in zip(
        lanes, (slice(0, 34), slice(0, 0), slice(34, 43), slice(43, 49)), strict=True
    ):
        np.testing.assert_array_equal(lane.rows, expected[at])
    again = backend.to_numpy(join_bins(lanes[:3], backend))
    np.testing.assert_array_equal(again, expected[:43])
    # The lanes' bins are views of the joined ones.
    joined = join_bins(lanes[:1], backend)
    joined[...] = 7
    (part,) = lanes[0].device_bins.chunks
    assert (backend.to_numpy(part) == 7).all()


def test_float32_edges_compare_like_float64_edges():
    rng = np.random.default_rng(5)
    edges = np.sort(rng.normal(size=255) * 10.0 ** rng.integers(-46, 39, 255))
    tree = order_edges(edges[None], np.float32)[0]
    order = order_edges(np.arange(255.0)[None], np.float64)[0].astype(int)
    with np.errstate(over="ignore", under="ignore"):
        values = edges.astype(np.float32)
    values = np.concatenate(
        [
            values,
            np.nextafter(values, np.float32(np.inf)),
            np.nextafter(values, -np.float32(np.inf)),
        ]
    )
    for value in values:
        np.testing.assert_array_equal(tree < value, edges[order] < np.float64(value))


def test_exhausted_gpu_memory_names_its_purpose():
    class Full(EmulatedCupy):
        def to_device(self, array):
            raise MemoryError("no more")

    bins = Bins((np.arange(3.0),), 255, np.zeros(1, bool))
    with pytest.raises(DeviceMemoryError, match=r'The bins of 7 rows did not fit.*device="cpu"'):
        DeviceBins(bins, Full()).add(np.zeros((7, 1)))


def test_rows_needed_on_the_host_are_selected_on_the_device(monkeypatch):
    plug_in(FakeCupy, monkeypatch)
    X = np.array([[1.0, 3.0], [np.nan, 3.0], [2.0, 1.0], [1.0, np.nan]])
    device_rows = DeviceArray(X)
    which = np.array([True, False, True, True])
    monkeypatch.setattr(DeviceArray, "copied", 0)
    np.testing.assert_array_equal(take_rows(device_rows, which).values, X[which])
    assert take_rows(device_rows, np.ones(4, bool)) is device_rows
    assert DeviceArray.copied == 0
    np.testing.assert_array_equal(find_distinct_values(device_rows[:, 0]), np.unique(X[:, 0]))
