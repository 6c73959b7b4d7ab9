"""Trees on the GPU: kernels compared with a copy's bandwidth, fits and predictions with the CPU."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks._gpu_device import Case, Device, Measured, largest_difference
from benchmarks.boosting import rows
from daskml_dist.backends.cupy_bins import DeviceBins
from daskml_dist.backends.cupy_trees import CupyTrees
from daskml_dist.backends.host_trees import HostTrees
from daskml_dist.backends.tree_predict import write_bins
from daskml_dist.backends.trees import (
    CONSTANT,
    EXACT,
    ROUNDED,
    LeafPartition,
    SplitFacts,
    SplitLeaf,
)
from daskml_dist.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from daskml_dist.losses import LogLoss
from daskml_dist.models.bins import Bins, compute_bin_edges
from daskml_dist.solvers.boosting_scores import RowBoostLoss

__all__ = ["tree_cases"]

#: Number of rows of the kernels' cases and of the fits, and number of features.
_MANY, _ROWS, _D = 10_000_000, 1_000_000, 28
_TINY = 2_000
#: Number of rows whose bins are compared with the CPU's.
_COMPARED = 200_000
#: Formats in which gradients are packed.
_MODES = {"hessians of 1": CONSTANT, "full precision": EXACT, "12 bits": ROUNDED}


def tree_cases() -> Iterator[tuple[str, Case]]:
    """Yield the names and cases."""
    shape = f"{_MANY:,} x {_D}"
    yield f"boosting, bins of float32 rows, {shape}", _bins
    yield f"boosting, gradients of the log loss, {_MANY:,} rows", _gradients
    for name, mode in _MODES.items():
        yield f"boosting, histograms of all rows, {name}, {shape}", partial(_whole, mode)
    yield f"boosting, partition of a leaf and histogram of half of it, {shape}", _parted
    yield f"boosting, best splits of 16 leaves x {_D}", _splits
    shape = f"{_ROWS:,} x {_D}"
    for what in _MODELS:
        for device in ("gpu", "cpu"):
            name = f"{what}, whole fit, {device.upper()}, one process, {shape}"
            yield name, partial(_fit, what, device)
        for device in ("gpu", "cpu"):
            name = f"{what}, predict_proba, {device.upper()}, {shape}"
            yield name, partial(_predict, what, device)


# -- kernels -------------------------------------------------------------------------------------


def _make_rows(n: int, mode: int) -> Any:
    """Return a lane's rows with random bins and packed gradients."""
    rng = np.random.default_rng(0)
    bins = np.zeros((n, -(-_D // 8) * 8), np.uint8)
    bins[:, :_D] = rng.integers(0, 256, (n, _D), dtype=np.uint8)
    shift = {CONSTANT: 16, EXACT: 32, ROUNDED: 38}[mode]
    packed = (rng.integers(-1000, 1000, (1, n)) << shift) + 1
    extra = {
        "raw": rng.normal(size=(1, n)), "packed": packed, "index": np.empty(n, np.int32),
        "spare": np.empty(n, np.int32),
    }  # fmt: skip
    return SimpleNamespace(
        n=n, rows=bins, columns=np.ascontiguousarray(bins[:, :_D].T), weight=None,
        device_bins=None,
        y=rng.integers(0, 2, n).astype(float), salt=np.zeros(n, np.uint32), extra=extra,
    )  # fmt: skip


def _lanes(on: Device, mode: int) -> tuple[int, Any, Any]:
    """Return the number of rows, and the lane's data on the GPU and on the CPU."""
    n = _TINY if on.tiny else _MANY
    rows, shape = _make_rows(n, mode), (_D, 256, 2 if mode == CONSTANT else 3)
    (gpu,) = CupyTrees(on.backend).open_rows([rows], shape)
    gpu._packed[...] = on.backend.to_device(rows.extra["packed"])
    return n, gpu, HostTrees().open_rows([rows], shape)[0]


def _bins(on: Device) -> Measured:
    """Measure the binning of rows on the GPU; a share of them is compared with the CPU's loop."""
    n = _TINY if on.tiny else _MANY
    X, _ = on.rows(n, _D)
    some = on.backend.to_numpy(X[:_COMPARED])
    edges = tuple(compute_bin_edges(column, None, 255) for column in some.T)
    bins = Bins(edges, 255, np.zeros(_D, bool))
    made = DeviceBins(bins, on.backend)

    def put() -> None:
        made.chunks.clear()
        made.add(X)

    taken = on.milliseconds(put)
    found = on.backend.to_numpy(made.chunks[0][:_COMPARED])
    expected, columns = np.zeros_like(found), np.empty((_D, len(some)), np.uint8)
    write_bins(
        some, bins.table, bins.n_edges, bins.categorical, bins.max_bins, expected, columns,
        np.zeros(_D, np.uint8),
    )  # fmt: skip
    return Measured(taken, n * (4 * _D + made.width), largest_difference(found, expected))


def _gradients(on: Device) -> Measured:
    n, gpu, cpu = _lanes(on, EXACT)
    found, expected = (lane.make_gradients(RowBoostLoss(LogLoss()), False) for lane in (gpu, cpu))
    taken = on.milliseconds(lambda: gpu.make_gradients(RowBoostLoss(LogLoss()), False))
    return Measured(taken, n * (8 + 8 + 4 + 4), largest_difference(found, expected))


def _whole(mode: int, on: Device) -> Measured:
    """Measure the root histogram of all rows, which also rebuilds the row index."""
    n, gpu, cpu = _lanes(on, mode)
    found = on.backend.to_numpy(gpu.build_root_histogram(mode, 0))
    difference = largest_difference(found, cpu.build_root_histogram(mode, 0))
    return Measured(
        on.milliseconds(lambda: gpu.build_root_histogram(mode, 0)), n * (32 + 8 + 4), difference
    )


def _parted(on: Device) -> Measured:
    """Measure a partition of rows; if repeated, the rows are already in order, at the same cost."""
    n, gpu, cpu = _lanes(on, EXACT)
    part = [LeafPartition(0, (np.arange(256) < 128).astype(np.uint8), slice(0, n), 1)]
    for lane in (gpu, cpu):
        lane.build_root_histogram(EXACT, 0)
    found = on.backend.to_numpy(gpu.partition_leaves(part, EXACT, 0)[0])
    difference = largest_difference(found, cpu.partition_leaves(part, EXACT, 0)[0])
    taken = on.milliseconds(lambda: gpu.partition_leaves(part, EXACT, 0))
    # Bytes: index and a feature's bins twice, the index written twice and read; half of the rows.
    return Measured(taken, n * (2 * (4 + 1) + 3 * 4 + (32 + 8 + 4) // 2), difference)


def _splits(on: Device) -> Measured:
    rng, scales = np.random.default_rng(0), np.array([2.0**-20, 2.0**-10])
    n, shape = 16, (_D, 256, 3)
    hists = rng.integers(1, 1000, (n, *shape))
    hists[..., 0] -= 500
    none = np.zeros(_D, np.uint8)
    facts = SplitFacts(
        np.full(_D, 255, np.int32), none + 1, none, none.view(np.int8), 0.0, 1e-3, 20
    )
    splits = np.zeros((2, n, 12), np.int64)
    kinds = []
    for move in (on.backend.to_device, np.asarray):
        kinds.append(
            [SplitLeaf(move(h), none + 1, h[0].sum(axis=0), 0.0, -np.inf, np.inf) for h in hists]
        )
    gpu = CupyTrees(on.backend)
    gpu.find_best_splits(kinds[0], 0, facts, scales, splits[0])
    HostTrees().find_best_splits(kinds[1], 0, facts, scales, splits[1])
    taken = on.milliseconds(lambda: gpu.find_best_splits(kinds[0], 0, facts, scales, splits[0]))
    return Measured(taken, hists.nbytes, "0" if (splits[0] == splits[1]).all() else "other splits")


# -- fits ----------------------------------------------------------------------------------------


def _boosting(device: str, tiny: bool) -> Any:
    return HistGradientBoostingClassifier(
        max_iter=3 if tiny else 100, early_stopping=False, random_state=0, device=device
    )


def _forest(device: str, tiny: bool) -> Any:
    return RandomForestClassifier(3 if tiny else 20, max_depth=12, random_state=0, device=device)


_MODELS: dict[str, Callable[[str, bool], Any]] = {
    "boosting, 100 iterations": _boosting,
    "forest, 20 trees of depth 12": _forest,
}


@functools.cache
def _fitted(what: str, device: str, tiny: bool) -> tuple[float, Any]:
    """Return the seconds of a fit, after kernels are loaded, and the model."""
    X, y = rows(_TINY if tiny else _ROWS, _D)
    _MODELS[what](device, True).fit(X[:10_000], y[:10_000])
    model, since = _MODELS[what](device, tiny), time.perf_counter()
    model.fit(X, y)
    return time.perf_counter() - since, model


def _fit(what: str, device: str, on: Device) -> Measured:
    """Measure a fit end to end with rows in host memory, and compare its trees with the CPU's."""
    seconds, model = _fitted(what, device, on.tiny)
    other = _fitted(what, "cpu", on.tiny)[1]._trees.packed()
    own = model._trees.packed()
    same = all(own[name].tobytes() == other[name].tobytes() for name in own)
    return Measured(seconds * 1e3, difference="0" if same else "other trees")


def _predict(what: str, device: str, on: Device) -> Measured:
    """Measure predictions of rows on the GPU, or in host memory."""
    model = _fitted(what, "cpu", on.tiny)[1]
    X, _ = rows(_TINY if on.tiny else _ROWS, _D)
    there = on.backend.to_device(X) if device == "gpu" else X
    model.predict_proba(there[:100])
    since = time.perf_counter()
    found = model.predict_proba(there)
    taken = time.perf_counter() - since
    few = model.predict_proba(X[:1000])
    return Measured(taken * 1e3, difference=largest_difference(found[:1000], few))
