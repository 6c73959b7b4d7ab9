"""CUDA kernels of forests (compiled by g++) equal the CPU's compiled loops, bit for bit."""

from __future__ import annotations

import ctypes
from importlib import resources
from types import SimpleNamespace

import numba
import numpy as np
import pytest

from daskml_dist.backends.cupy_bins import from_ordered_integers, to_ordered_integers
from daskml_dist.backends.cupy_forests import CupyForests
from daskml_dist.backends.elementary_functions import logarithm
from daskml_dist.backends.forest_cuts import ENTROPY, GINI, POISSON, SQUARED
from daskml_dist.backends.forests import ForestFacts, GrowingNodes
from daskml_dist.backends.host_forests import HostForests
from tests.backends.kernel_problems import needs_compiler
from tests.backends.test_tree_kernels import _Guards
from tests.cuda_emulation import EmulatedCupy, library_of

pytestmark = needs_compiler
#: Bits for row counts; bin of missing values; features.
BITS, MISSING, D = 12, 250, 5
KINDS = {"gini": GINI, "entropy": ENTROPY, "squares": SQUARED, "poisson": POISSON}


@pytest.fixture
def device(guarded):
    """Provide a GPU on NumPy and emulated kernels, whose arrays are between sentinels."""
    backend = EmulatedCupy()
    backend._cp = _Guards(backend._cp, guarded)
    return CupyForests(backend)


def _both(device, kind, n, n_outputs=1, table=True, seed=0):
    """Return the same rows on the CPU and on the GPU, and their common arguments."""
    rng = np.random.default_rng(seed)
    rows = np.zeros((n, 8), np.uint8)
    rows[:, :D] = rng.integers(0, [3, MISSING, 40, 7, 1], (n, D))
    rows[:, :2][rng.random((n, 2)) < 0.2] = MISSING
    if kind < SQUARED:
        n_sums, more = 3 * n_outputs, np.full((n, n_outputs // 2 * 2), -1, np.int64)
        for k in range(1, n_outputs):
            more[:, k - 1] = 3 * k + rng.integers(0, 3, n)
    else:
        n_sums, y = 1 + n_outputs, rng.gamma(1.0, size=(n, n_outputs))
        whole = np.rint(1000 * y).astype(np.int64)
        more = np.hstack([whole, whole.sum(axis=1, keepdims=True), y.view(np.int64)])
    low, high = np.sort(rng.normal(size=(2, D, 256)), axis=0)
    low.sort(axis=1)
    high.sort(axis=1)
    facts = ForestFacts(
        np.array([2**62, 2**63 + 2**62], np.uint64) if table else np.empty(0, np.uint64), BITS,
        n_sums, 2 + more.shape[1], n_outputs, D, MISSING, np.array([1, 0, -1, 0, 0], np.int8),
        n_outputs == 1, low, high,
    )  # fmt: skip
    lane_rows = SimpleNamespace(
        rows=rows, numbers=rng.permutation(10 * n)[:n], weight=rng.integers(0, 3, n), more=more,
        device_bins=None,
        slot=rng.integers(0, 3 if kind < SQUARED else 1, n).astype(np.int32),
    )  # fmt: skip
    host = HostForests()
    lanes = [where.open_lane(lane_rows, facts, np.empty) for where in (host, device)]
    return facts, host, lanes


def _facts_of(kind, drawn, n_trees=2):
    """Return feature facts in the format of `forest_cuts`."""
    first = 3 if kind < SQUARED else 1
    return np.tile(np.array([kind, BITS, 2, 3, drawn, MISSING, D, 2, 9, 2, first, 1]), (n_trees, 1))


def _roots(n, rng, bounded):
    bounds = np.tile([-np.inf, np.inf, float(bounded)], (len(n), 1))
    if bounded and len(n) > 1:
        bounds[1, :2] = [0.1, 0.5]
    paths = rng.integers(2**64, size=len(n), dtype=np.uint64)
    each = np.zeros(len(n), np.int64)
    return GrowingNodes(np.arange(len(n)), each, np.array(n), paths, bounds, 0)


def _sorted(lines):
    return lines[np.lexsort(lines.T)]


@pytest.mark.parametrize("kind", [GINI, SQUARED], ids=["classes", "targets"])
@pytest.mark.parametrize(
    ("n", "n_outputs", "table"), [(1, 1, False), (1100, 1, True), (600, 3, True)]
)
def test_rows_are_sampled_summed_and_partitioned(kind, n, n_outputs, table, device):
    facts, host, lanes = _both(device, kind, n, n_outputs, table)
    rng = np.random.default_rng(1)
    keys = rng.integers(2**64, size=2, dtype=np.uint64)
    factor = rng.integers(1, 9, (2, 3)) if kind == GINI and n_outputs == 1 else None
    counts = [lane.draw_lines(keys, factor) for lane in lanes]
    assert counts[0] == counts[1]
    nodes = _roots(counts[0], rng, facts.bounded)
    for _ in range(3):
        sums_and_reach = []
        for lane in lanes:
            sums = np.zeros((len(nodes), facts.n_sums + 2), np.int64)
            reach = np.full((len(nodes), 2 * n_outputs), -np.inf)
            lane.add_node_sums(nodes, sums, reach)
            sums_and_reach.append((sums, reach))
        np.testing.assert_array_equal(sums_and_reach[1][0], sums_and_reach[0][0])
        np.testing.assert_array_equal(sums_and_reach[1][1], sums_and_reach[0][1])
        for first, last in ((0, 2), (1, 5)):
            features = [where.draw_features(nodes, facts, first, last) for where in (host, device)]
            np.testing.assert_array_equal(features[1], features[0])
            hists = [lane.build_histograms(nodes, features[0]) for lane in lanes]
            np.testing.assert_array_equal(hists[1], hists[0])
        cuts = np.column_stack(
            [
                rng.integers(0, D, len(nodes)),
                rng.integers(0, 60, len(nodes)),
                rng.integers(0, 2, len(nodes)),
            ]
        )
        middles = [lane.partition_nodes(nodes, cuts) for lane in lanes]
        paths = rng.integers(2**64, size=2 * len(nodes), dtype=np.uint64)
        np.testing.assert_array_equal(middles[1], middles[0])
        nodes = GrowingNodes(
            nodes.tree.repeat(2), np.column_stack([nodes.start, middles[0]]).ravel(),
            np.column_stack([middles[0], nodes.stop]).ravel(), paths,
            nodes.bounds.repeat(2, axis=0), nodes.n_partitions + 1,
        )  # fmt: skip
        for k in range(len(nodes)):
            lines_of_nodes = [_sorted(lane.copy_lines(nodes, k)) for lane in lanes]
            np.testing.assert_array_equal(lines_of_nodes[1], lines_of_nodes[0])


@pytest.mark.parametrize("drawn", [False, True], ids=["best", "drawn"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(("n", "n_outputs"), [(40, 1), (700, 1), (300, 2)])
def test_best_cuts(kind, drawn, n, n_outputs, device):
    facts, host, lanes = _both(device, kind, n, n_outputs, seed=n)
    rng = np.random.default_rng(2)
    keys = rng.integers(2**64, size=2, dtype=np.uint64)
    (counts, _) = [lane.draw_lines(keys, None) for lane in lanes]
    nodes, of_trees = _roots(counts, rng, facts.bounded), _facts_of(kind, drawn)
    sums, reach = np.zeros((2, facts.n_sums + 2), np.int64), np.full((2, 2 * n_outputs), -np.inf)
    lanes[0].add_node_sums(nodes, sums, reach)
    for jobs in (slice(0, 10), slice(3, 9), slice(4, 4)):
        cuts = []
        for where, lane in zip((host, device), lanes, strict=True):
            features = where.draw_features(nodes, facts, 0, D)
            hist = lane.build_histograms(nodes, features).reshape(10, 256, facts.n_sums)[jobs]
            hist = np.ascontiguousarray(hist)
            cuts.append(where.find_cuts(nodes, features, hist, jobs, sums, facts, of_trees))
        worths = [np.ascontiguousarray(t[:, :, 0]).view(np.float64) for t in cuts]
        np.testing.assert_array_equal(worths[1], worths[0])
        np.testing.assert_array_equal(cuts[1][:, :, 2], cuts[0][:, :, 2])
        found = (cuts[0][:, :, 2] > 0) & np.isfinite(worths[0])
        np.testing.assert_array_equal(cuts[1][found], cuts[0][found])
        if jobs == slice(0, 10):
            assert found.sum() >= 3
            assert not cuts[0][:, :, 2].all()  # one feature does not vary
            for one in (False, True):
                best = [where.choose_best_cuts(cuts[0], features, one) for where in (host, device)]
                np.testing.assert_array_equal(best[1], best[0])


def test_cuts_that_separate_missing_values(device):
    # All values are in one bin: either only missing values go right, or there is no cut.
    facts, host, _ = _both(device, GINI, 80)
    hist = np.zeros((2, 256, 3), np.int64)
    hist[0, 6] = [(30 << BITS) + 30, 0, 0]
    hist[0, MISSING] = [0, (20 << BITS) + 20, 0]
    hist[1, MISSING] = hist[0].sum(axis=0)
    total = hist[1, MISSING].sum()
    sums = np.tile([*hist[1, MISSING], total, 0], (2, 1))
    nodes = _roots([50, 50], np.random.default_rng(0), False)
    for drawn in (0, 1):
        cuts = [
            where.find_cuts(
                nodes, where.draw_features(nodes, facts, 0, 1), hist.copy(), slice(0, 2), sums,
                facts, _facts_of(GINI, drawn),
            )
            for where in (host, device)
        ]  # fmt: skip
        np.testing.assert_array_equal(cuts[1][0], cuts[0][0])
        assert cuts[1][0, 0, 2:6].tolist() == [1, 6, -1, 0]
        assert cuts[1][1, 0, 2] == cuts[0][1, 0, 2] == 0


def test_sortable_integers_keep_the_order_of_floats():
    numbers = np.array([-np.inf, -1e300, -1.0, -1e-310, 0.0, 1e-310, 1.0, np.inf])
    ordered = to_ordered_integers(numbers)
    assert (np.diff(ordered) > 0).all()
    np.testing.assert_array_equal(from_ordered_integers(ordered), numbers)


def test_logarithm():
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [rng.random(2000), 10.0 ** rng.uniform(-300, 300, 500), 1 + 1e-3 * rng.normal(size=500)]
    )
    compiled = numba.njit(lambda x: logarithm(x))
    found, exact = np.array([compiled(v) for v in x]), np.log(x.astype(np.longdouble))
    assert (np.abs(found - exact) < np.spacing(np.abs(found))).all()
    assert compiled(1.0) == 0
    # Each operation is rounded separately, on this processor too.
    np.testing.assert_array_equal([logarithm(v) for v in x], found)
    text = resources.files("daskml_dist.backends.kernels").joinpath("logarithm.cuh").read_text()
    text = text.replace("#pragma once", "")
    entry = 'extern "C" void all(double *x, long long n) {\n'
    library = library_of(
        f"{text}{entry}for (long long i = 0; i < n; ++i) x[i] = logarithm(x[i]);\n}}", ()
    )

    logarithms = x.copy()
    library.all(ctypes.c_void_p(logarithms.ctypes.data), ctypes.c_longlong(len(logarithms)))
    np.testing.assert_array_equal(logarithms, found)
