"""Statistics on GPU arrays equal the sums of the CPU and never mix in host arrays.

The GPU's arrays are array-api-strict's here, which refuse to mix with NumPy's.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse

from daskml_dist import solvers
from daskml_dist.backends import Backend, get_backend
from daskml_dist.comm.packing import pack_object, split_object, unpack_object
from daskml_dist.errors import InvalidDataError
from daskml_dist.models import linear as curvature
from daskml_dist.models.base import BatchRows
from daskml_dist.models.naive_bayes import RowsByClass
from daskml_dist.solvers import Statistic, least_squares, rows
from daskml_dist.solvers.base import known_loss
from daskml_dist.solvers.naive_bayes import ClassCounts
from daskml_dist.training.worker.loops.solver import reduce_request_classes
from tests.cuda_emulation import EmulatedCupy
from tests.solvers.statistic_samples import (
    CODES,
    N_FEATURES,
    N_ROWS,
    SAMPLES,
    WEIGHT,
    X,
)
from tests.strict_backend import StrictBackend

for _module in pkgutil.iter_modules(solvers.__path__):
    importlib.import_module(f"{solvers.__name__}.{_module.name}")

NEEDS_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
#: Statistics that only run on the host.
ON_HOSTS = {"ItemCounts", "PairCounts", "SetCounts"}


def _statistics(base: type[Statistic] = Statistic) -> Iterator[type[Statistic]]:
    for statistic in base.__subclasses__():
        yield statistic
        yield from _statistics(statistic)


STATISTICS = sorted(
    {
        s
        for s in _statistics()
        if s.__module__.startswith("daskml_dist.")
        and not inspect.isabstract(s)
        and s.__name__ not in ON_HOSTS
    },
    key=lambda s: s.__name__,
)
CASES = [
    pytest.param(*sample, id=f"{statistic.__name__}-{name}")
    for statistic in STATISTICS
    for name, sample in SAMPLES.get(statistic, {}).items()
]


#: Containers of rows and array libraries; the standard has no sparse arrays.
BACKENDS = [
    pytest.param(np.asarray, StrictBackend, id="strict"),
    pytest.param(sparse.csr_matrix, EmulatedCupy, id="csr", marks=NEEDS_COMPILER),
    pytest.param(np.asarray, partial(get_backend, "gpu"), id="cupy", marks=pytest.mark.gpu),
    pytest.param(
        sparse.csr_matrix, partial(get_backend, "gpu"), id="cupy-csr", marks=pytest.mark.gpu
    ),
]


def _ways() -> Iterator[Any]:
    """Yield backends, dtypes, and whether rows have weights.

    The default run has each dtype once, and one dtype with the emulated kernels, which are compiled
    for each.
    """
    for backend in BACKENDS:
        usual = {(np.float32, False), (np.float64, True)}
        if backend.id == "csr":
            usual = {(np.float32, True)}
        for dtype, weighted in itertools.product((np.float32, np.float64), (False, True)):
            name = f"{backend.id}-{np.dtype(dtype).name}-{'weighted' if weighted else 'plain'}"
            slow = [] if (dtype, weighted) in usual else [pytest.mark.slow]
            yield pytest.param(
                *backend.values, dtype, weighted, id=name, marks=[*backend.marks, *slow]
            )


def _add(
    backend: Backend, model: Any, statistic: Statistic, X: Any, y: Any, weight: Any
) -> tuple[float, Any]:
    """Return the loss and the sum, on the host."""
    device_arrays = [
        None if array is None else backend.to_device(array) for array in (X, y, weight)
    ]
    out = backend.to_device(np.zeros(statistic.shape(model)))
    rows = BatchRows(
        backend.rows(device_arrays[0], slice(0, N_ROWS)), device_arrays[1], device_arrays[2]
    )
    if statistic.state is not None:
        rows.state = statistic.state.make(model, rows, backend)
    loss = known_loss(statistic.add(model, rows, out, backend))
    return float(loss), backend.to_numpy(out)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_each_statistic_has_samples(statistic: type[Statistic]) -> None:
    assert SAMPLES.get(statistic), (
        f"{statistic.__name__} was never seen on a GPU's arrays: add to SAMPLES a dict from names "
        "to (model, statistic, encoded targets)."
    )


@pytest.mark.parametrize(("model", "statistic", "y"), CASES)
def test_each_statistic_is_sent_as_data(model: Any, statistic: Statistic, y: Any) -> None:
    kinds = reduce_request_classes()
    found = unpack_object(pack_object(statistic, kinds), kinds)
    assert type(found) is type(statistic)
    # Compared recursively, since statistics may contain others.
    np.testing.assert_equal(split_object(found, kinds), split_object(statistic, kinds))


@pytest.mark.parametrize(("container", "make", "dtype", "weighted"), list(_ways()))
@pytest.mark.parametrize(("model", "statistic", "y"), CASES)
def test_sums_equal_those_of_the_cpu(
    model: Any,
    statistic: Statistic,
    y: Any,
    container: Any,
    make: Callable[[], Backend],
    dtype: Any,
    weighted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    y = y if y is None or y.dtype != np.float64 else y.astype(dtype)
    arrays = X.astype(dtype), y, WEIGHT.astype(dtype) if weighted else None
    loss, total = _add(get_backend("cpu"), model, statistic, *arrays)
    tolerance, backend = 1e-5 if dtype == np.float32 else 1e-12, make()
    arrays = container(arrays[0]), *arrays[1:]
    for few_rows in (False, True):
        if few_rows:
            monkeypatch.setattr(type(backend), "entries_at_once", 7 * N_FEATURES)
            monkeypatch.setattr(least_squares, "_MIN_PIECE_ROWS", 1)
        on_gpu, on_gpu_total = _add(backend, model, statistic, *arrays)
        assert_allclose(on_gpu, loss, rtol=tolerance)
        assert on_gpu_total.dtype == np.float64
        atol = tolerance * np.abs(total).max()
        assert_allclose(on_gpu_total, total, rtol=tolerance, atol=atol)


def test_negative_counts_are_detected() -> None:
    model, statistic = RowsByClass(N_FEATURES, 3), ClassCounts(signed=False)
    _add(StrictBackend(), model, statistic, np.abs(X), CODES, None)
    with pytest.raises(InvalidDataError, match="Negative values"):
        _add(StrictBackend(), model, statistic, X, CODES, None)


def test_sparse_rows_have_one_interface() -> None:
    """By the common class of sparse rows of all backends."""
    backend = get_backend("cpu")
    dense = np.where(X > 1, X, 0.0)
    some = backend.rows(sparse.csr_array(dense), np.array([3, 1, 4]))
    assert rows.is_sparse(some)
    assert not rows.is_sparse(dense)
    assert_allclose(rows.to_dense_float64(some), dense[[3, 1, 4]])
    assert_allclose(
        rows.to_dense_float64(rows.map_entries(np.sqrt, some)), np.sqrt(dense[[3, 1, 4]])
    )


@pytest.mark.parametrize("blocks", [rows.row_tiles, curvature.slice_for_curvature])
def test_a_gpu_processes_many_rows_per_call(blocks: Any) -> None:
    wide = np.zeros((5000, 100))
    assert len(list(blocks(wide, get_backend("cpu")))) > 1
    assert list(blocks(wide, StrictBackend())) == [slice(0, 5000)]
